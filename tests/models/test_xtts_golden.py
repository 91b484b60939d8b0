"""XTTS v2 computes what the original computed, whose numbers parity/compare_xtts.py wrote."""

from typing import Any

import pytest
import torch

from tests.parity.xtts_golden import deviations, published_shapes, read_golden
from tests.parity.xtts_inputs import unpack
from tests.parity.xtts_ours import (
    compute_frozen,
    compute_gpt,
    compute_mels,
    make_frozen,
    make_gpt,
    sampling_scores,
)


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return read_golden()


def test_the_golden_numbers_name_the_original_and_the_command_that_makes_them(
    golden: dict[str, Any],
) -> None:
    assert golden["made_with"]["coqui-tts"]
    assert "tests/parity/compare_xtts.py" in golden["command"]


@pytest.mark.parametrize("part", ["gpt", "dvae", "vocoder", "speaker"])
def test_keys_and_shapes_are_the_published_ones(golden: dict[str, Any], part: str) -> None:
    expected = unpack(golden["shapes"]["full"][part])

    assert published_shapes(part) == expected


def test_the_gpt_conditions_trains_and_generates_as_the_original(golden: dict[str, Any]) -> None:
    gpt = make_gpt(golden["shapes"]["small"])
    sampled = torch.tensor(golden["values"]["generation.sampled"])

    found = compute_gpt(gpt) | {"generation.scores": sampling_scores(gpt, sampled)}

    assert deviations(found, golden["values"]) == {}
    assert len(found) > 200


def test_both_mels_are_the_original_ones(golden: dict[str, Any]) -> None:
    assert deviations(compute_mels(), golden["values"]) == {}


def test_codes_speakers_and_audio_are_the_original_ones(golden: dict[str, Any]) -> None:
    networks = make_frozen(golden["shapes"]["small"], "small")

    found = compute_frozen(*networks, "small")

    assert deviations(found, golden["values"]) == {}
    assert len(found) == 4


@pytest.mark.parametrize(
    ("key", "reaches"),
    [
        ("conditioning_encoder.attn.3.qkv.weight", "conditioning"),
        ("conditioning_perceiver.layers.1.0.to_kv.weight", "conditioning"),
        ("gpt.h.1.mlp.c_fc.weight", "training.loss.audio"),
        ("text_pos_embedding.emb.weight", "training.loss.text"),
        ("mel_head.weight", "masked.loss.audio"),
    ],
)
def test_one_changed_weight_of_the_gpt_is_noticed(
    golden: dict[str, Any], key: str, reaches: str
) -> None:
    gpt = make_gpt(golden["shapes"]["small"])
    with torch.no_grad():
        gpt.get_parameter(key).view(-1)[3] += 1

    found = deviations(compute_gpt(gpt), golden["values"])

    assert reaches in found


@pytest.mark.parametrize(
    ("number", "key", "reaches"),
    [
        (0, "encoder.5.bias", "codes.small.noise"),
        (1, "waveform_decoder.conv_pre.weight", "vocoder.small"),
        (2, "layer2.0.conv1.weight", "speaker.small"),
    ],
)
def test_one_changed_weight_of_a_frozen_network_is_noticed(
    golden: dict[str, Any], number: int, key: str, reaches: str
) -> None:
    networks = make_frozen(golden["shapes"]["small"], "small")
    networks[number].get_parameter(key).view(-1)[3] += 1

    found = deviations(compute_frozen(*networks, "small"), golden["values"])

    assert reaches in found

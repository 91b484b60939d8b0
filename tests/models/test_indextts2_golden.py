"""IndexTTS-2 computes what the original did, whose numbers parity/compare_indextts2.py wrote."""

import copy
from typing import Any

import pytest
import torch

from tests.parity.indextts2_ours import (
    compute,
    compute_front_ends,
    deviations,
    make_model,
    published_shapes,
    read_golden,
)
from tests.parity.xtts_inputs import unpack
from trainer.models.indextts2.network.gpt import UnifiedVoice


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return read_golden()


@pytest.fixture(scope="module")
def model(golden: dict[str, Any]) -> UnifiedVoice:
    return make_model(golden["shapes"]["small"])


def test_the_golden_numbers_name_the_original_and_the_command_that_makes_them(
    golden: dict[str, Any],
) -> None:
    assert golden["made_with"]["index-tts"] == "2.0.0"
    assert "tests/parity/compare_indextts2.py" in golden["command"]


def test_all_665_keys_and_shapes_are_the_published_ones(golden: dict[str, Any]) -> None:
    expected = unpack(golden["shapes"]["full"])

    assert published_shapes() == expected
    assert len(expected) == 665


def test_the_gpt_hears_references_and_trains_as_the_original(
    golden: dict[str, Any], model: UnifiedVoice
) -> None:
    found = compute(model)

    assert deviations(found, golden["values"]) == {}
    assert len(found) > 250


def test_codes_and_the_filterbank_are_the_original_ones(golden: dict[str, Any]) -> None:
    found = compute_front_ends()

    assert deviations(found, golden["values"]) == {}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("key", "reaches"),
    [
        ("conditioning_encoder.encoders.1.feed_forward.w_2.bias", "voice.condition"),
        ("emo_conditioning_encoder.encoders.0.conv_module.depthwise_conv.weight", "voice.emotion"),
        ("emo_layer.bias", "trained.loss.audio"),
        ("gpt.h.1.mlp.c_fc.weight", "training.loss.audio"),
        ("text_pos_embedding.emb.weight", "training.loss.text"),
        ("speed_emb.weight", "training.loss.text"),
    ],
)
def test_one_changed_weight_is_noticed(
    golden: dict[str, Any], model: UnifiedVoice, key: str, reaches: str
) -> None:
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.get_parameter(key).view(-1)[3] += 1

    found = deviations({reaches: compute(changed)[reaches]}, golden["values"])

    assert reaches in found

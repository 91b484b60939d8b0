"""Every model family keeps the contract of ModelFamily, on a handful of synthetic clips."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import soundfile
import torch
from safetensors.torch import load_file
from torch.utils.checkpoint import checkpoint

from trainer.core.errors import DataError
from trainer.core.options import describe
from trainer.core.registry import discover
from trainer.core.specs import Corpus, ModelFamily
from trainer.core.types import Batch, Clip
from trainer.inference.synthesis import speak_pieces

FAMILIES = list(discover("trainer.models", ModelFamily).values())
TEXTS = [
    "one two, three four.",
    "a big dog ran home",
    "we sing all day long",
    "no more rain",
    "go now!",
]
SPEAKERS = ["ann", "bob", "ann", "bob", "ann"]


def write_clip(folder: Path, number: int) -> Clip:
    """Write a buzzing tone that changes with every letter of the clip's text."""
    rate, text = 16000, TEXTS[number]
    steps = np.array([ord(letter) % 16 for letter in text]).repeat(1600)
    time = np.arange(len(steps)) / rate
    pitch = 110 + 60 * (SPEAKERS[number] == "ann") + 10 * np.sin(2 * np.pi * 2 * time)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    wave = sum(np.sin(k * phase) * np.exp(-np.abs(k - steps) / 3) for k in range(1, 17))
    noise = np.random.default_rng(number).standard_normal(len(time))
    path = folder / f"{number}.wav"
    soundfile.write(path, 0.1 * wave + 0.003 * noise, rate)
    split = "val" if number == 4 else "train"
    return Clip(
        str(number), str(path), text, SPEAKERS[number], "en", len(time) / rate, rate, split,
        "train.csv", number + 2, str(number),
    )  # fmt: skip


class Prepared:
    """A family with its clips surveyed and a fresh model."""

    def __init__(self, family: ModelFamily, folder: Path) -> None:
        self.family = family
        self.options = family.options()
        self.clips = [write_clip(folder, number) for number in range(len(TEXTS))]
        featurizer = family.featurizer(None, self.options)
        self.raw = {clip.id: featurizer(clip) for clip in self.clips}
        self.corpus = self.survey()
        torch.manual_seed(0)
        self.model = family.load(None, self.options, self.corpus.facts)

    def survey(self) -> Corpus:
        """Survey the clips afresh."""
        arguments = (self.raw, self.clips, self.options, None)
        return self.family.survey(*arguments, lambda phase, done, total: None)

    def skip_if_silent(self) -> None:
        """Skip a test of a voice where the model has none."""
        silence = self.family.silent(self.model) if self.family.silent is not None else ""
        if silence:
            pytest.skip(silence)

    def batch(self, ids: list[str], totals: dict[str, float] | None = None) -> Batch:
        """Collate clips; without totals they are a step of their own."""
        features = self.corpus.features
        counted = [self.family.counts(features[clip_id]) for clip_id in ids]
        chosen = [features[clip_id] for clip_id in ids]
        if self.family.draws is not None:
            draw = self.family.draws(features)
            numbers = [np.random.default_rng(int(clip_id)) for clip_id in ids]
            pairs = zip(ids, numbers, strict=True)
            chosen = [draw(clip_id, np.random.default_rng(9), rng) for clip_id, rng in pairs]
        own = {name: sum(count[name] for count in counted) for name in counted[0]}
        own["clips"] = float(len(ids))
        return Batch(self.family.collate(chosen), ids, totals or own, 1.0)

    def losses(self, model: Any, batch: Batch) -> dict[str, float]:
        """Return the losses as numbers, dropout off."""
        model.eval()
        with torch.no_grad():
            return {name: value.item() for name, value in self.family.losses(model, batch).items()}


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def prepared(request: Any, tmp_path_factory: Any) -> Prepared:
    return Prepared(request.param, tmp_path_factory.mktemp("clips"))


def test_a_family_is_described(prepared: Prepared) -> None:
    family = prepared.family

    assert family.label and family.summary.endswith(".") and family.licence
    assert all(info.label and info.help for info in describe(family.options))
    assert {"adamw", "prodigy", "schedule_free_adamw"} <= set(family.learning_rates)


def test_features_are_deterministic_in_another_process(prepared: Prepared) -> None:
    featurizer = prepared.family.featurizer(None, prepared.options)

    copied = pickle.loads(pickle.dumps(featurizer))
    features = copied(prepared.clips[0])

    assert copied.fingerprint == featurizer.fingerprint != ""
    assert features.keys() == prepared.raw["0"].keys()
    for name, values in features.items():
        np.testing.assert_array_equal(values, prepared.raw["0"][name])


def test_a_survey_is_deterministic_and_its_facts_are_json(prepared: Prepared) -> None:
    again = prepared.survey()

    assert json.loads(json.dumps(again.facts)) == prepared.corpus.facts
    assert again.features.keys() | again.unusable.keys() == {clip.id for clip in prepared.clips}
    for clip_id, features in again.features.items():
        for name, values in features.items():
            np.testing.assert_array_equal(values, prepared.corpus.features[clip_id][name])


def test_masks_count_what_counts_tells(prepared: Prepared) -> None:
    ids = ["0", "3"]
    tensors = prepared.batch(ids).tensors

    for row, clip_id in enumerate(ids):
        counted = prepared.family.counts(prepared.corpus.features[clip_id])
        valid = {int(v[row].sum()) for name, v in tensors.items() if name.endswith("mask")}
        assert valid <= set(counted.values())
        assert valid
    # Tensors of places and of what is wanted there run over all clips at once.
    flat = {name for name in tensors if name.endswith(("_index", "_targets"))}
    assert all(len(value) == 2 for name, value in tensors.items() if name not in flat)


def test_micro_batches_add_up_to_the_loss_of_one_batch(prepared: Prepared) -> None:
    whole = prepared.batch(["0", "1", "2", "3"])
    parts = [prepared.batch(ids, whole.totals) for ids in (["0", "3"], ["1"], ["2"])]

    expected = prepared.losses(prepared.model, whole)
    found = [prepared.losses(prepared.model, part) for part in parts]

    for name, value in expected.items():
        assert sum(part[name] for part in found) == pytest.approx(value, rel=1e-5)


def test_measures_are_finite_and_add_up(prepared: Prepared) -> None:
    whole = prepared.batch(["0", "1"])
    parts = [prepared.batch([clip_id], whole.totals) for clip_id in ("0", "1")]
    prepared.model.eval()

    with torch.no_grad():
        losses, expected = prepared.family.validate(prepared.model, whole)
        found = [prepared.family.validate(prepared.model, part)[1] for part in parts]

    assert expected
    for name, value in prepared.losses(prepared.model, whole).items():
        assert losses[name].item() == pytest.approx(value)
    for name, value in expected.items():
        assert sum(part[name].item() for part in found) == pytest.approx(value.item(), rel=1e-4)


def test_losses_fall_within_five_steps(prepared: Prepared) -> None:
    model = copy.deepcopy(prepared.model)
    batch = prepared.batch(["0", "1", "2"])
    before = prepared.losses(model, batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for _ in range(5):
        model.train()
        optimizer.zero_grad()
        total = sum(prepared.family.losses(model, batch).values(), torch.zeros(()))
        total.backward()
        optimizer.step()

    assert sum(prepared.losses(model, batch).values()) < sum(before.values())


def test_an_export_loads_back_to_equal_losses(prepared: Prepared, tmp_path: Path) -> None:
    facts = prepared.corpus.facts
    batch = prepared.batch(["0", "1"])

    prepared.family.export(prepared.model, facts, tmp_path)
    loaded = prepared.family.load(tmp_path, prepared.options, facts)

    stored = load_file(tmp_path / "model.safetensors")
    assert stored.keys() == prepared.model.state_dict().keys()
    assert json.loads((tmp_path / "config.json").read_text(encoding="utf-8")) == facts
    assert prepared.losses(loaded, batch) == prepared.losses(prepared.model, batch)


def test_weights_staged_elsewhere_are_exported_without_drawing_random_numbers(
    prepared: Prepared, tmp_path: Path
) -> None:
    """A checkpoint is written while the next step draws its dropout from the same generator."""
    model = prepared.family.load(None, prepared.options, prepared.corpus.facts)
    staged = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    before = torch.get_rng_state()

    prepared.family.export(model, prepared.corpus.facts, tmp_path, staged)

    stored = load_file(tmp_path / "model.safetensors")
    assert torch.equal(torch.get_rng_state(), before)
    assert stored.keys() == staged.keys()
    assert all(not value.any() for value in stored.values())
    assert any(bool(value.any()) for value in model.state_dict().values())


def test_blocks_can_be_checkpointed_from_outside(prepared: Prepared) -> None:
    batch = prepared.batch(["0", "1"])
    plain, wrapped = copy.deepcopy(prepared.model).eval(), copy.deepcopy(prepared.model).eval()
    blocks = prepared.family.blocks(wrapped)
    calls = []

    for block in blocks:

        def run(*inputs: Any, forward: Any = block.forward) -> Any:
            calls.append(forward)
            return checkpoint(forward, *inputs, use_reentrant=False)

        block.forward = run
    for model in (plain, wrapped):
        sum(prepared.family.losses(model, batch).values(), torch.zeros(())).backward()

    assert len(blocks) > 0
    assert len(calls) == len(blocks)
    for parameter, other in zip(plain.parameters(), wrapped.parameters(), strict=True):
        assert (parameter.grad is None) == (other.grad is None)
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, other.grad)


def test_bf16_autocast_changes_the_loss_only_a_little(prepared: Prepared) -> None:
    batch = prepared.batch(["0", "1", "2"])
    exact = sum(prepared.losses(prepared.model, batch).values())

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = prepared.family.losses(prepared.model, batch)
        total = sum(found.values(), torch.zeros(()))
    total.backward()
    prepared.model.zero_grad()

    assert all(value.dtype == torch.float32 for value in found.values())
    assert total.item() == pytest.approx(exact, rel=0.05)


def test_synthesis_is_finite_and_repeatable(prepared: Prepared) -> None:
    prepared.skip_if_silent()
    facts = prepared.corpus.facts

    first, second = (
        prepared.family.synthesize(prepared.model, facts, "a big dog. rain!", "bob")
        for _ in range(2)
    )

    assert first.wave.dtype == np.float32
    assert len(first.wave) > 0
    assert np.abs(first.wave).max() <= 1
    np.testing.assert_array_equal(first.wave, second.wave)


def test_speech_in_pieces_adds_up_to_the_speech(prepared: Prepared) -> None:
    prepared.skip_if_silent()
    facts = prepared.corpus.facts
    asked = (prepared.model, facts, "a big dog. rain!", "bob")
    whole = prepared.family.synthesize(*asked)

    pieces = list(speak_pieces(prepared.family, *asked))

    joined = np.concatenate([piece.wave for piece in pieces])
    assert len(pieces) > 1 or prepared.family.stream is None
    assert {piece.sample_rate for piece in pieces} == {whole.sample_rate}
    np.testing.assert_allclose(joined, whole.wave, atol=1e-5)


def test_a_picture_is_a_drawing_and_nothing_else(prepared: Prepared) -> None:
    if prepared.family.illustrate is None:
        pytest.skip("the family draws nothing")
    ids = list(prepared.corpus.features)[:2]

    picture = prepared.family.illustrate(prepared.model, [prepared.batch(ids)])

    drawn = ElementTree.fromstring(picture.svg).iter()
    tags = {element.tag.rpartition("}")[2] for element in drawn}
    assert tags <= {"svg", "rect", "path", "text"}
    assert picture.words.endswith(".")


@pytest.mark.parametrize(("text", "speaker"), [("", "bob"), ("\u4e16", "bob"), ("a dog", "eve")])
def test_text_and_speakers_that_cannot_be_spoken_are_refused(
    prepared: Prepared, text: str, speaker: str
) -> None:
    with pytest.raises(DataError):
        prepared.family.synthesize(prepared.model, prepared.corpus.facts, text, speaker)

"""XTTS folders come in strictly, are converted once, and go out so that they come in again."""

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from assets.make_xtts import main, make_folder
from trainer.core.errors import CheckpointError
from trainer.models import _conversion_cache as converted
from trainer.models._conversion_cache import RANDOM_LICENCE
from trainer.models.xtts.checkpoint import base_folder as folder_module
from trainer.models.xtts.checkpoint.base_folder import PUBLISHED_LICENCE, Base, open_base
from trainer.models.xtts.checkpoint.export import publish_folder
from trainer.models.xtts.checkpoint.shapes import check_vocabulary, gpt_sizes, token_ids
from trainer.models.xtts.network.sizes import TINY

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny folder in the layout of the original release; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("made")
    make_folder(folder, TINY, with_config_pickle=True)
    return folder


@pytest.fixture(scope="module")
def opened(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The tiny folder, opened; its cache stays for the whole module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIMBRE_CACHE", str(tmp_path_factory.mktemp("cache")))
        return open_base(made)


@pytest.fixture(scope="module")
def published(opened: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What publishing the opened base writes."""
    folder = tmp_path_factory.mktemp("published")
    _publish(opened, folder)
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(published: Path, tmp_path: Path) -> Path:
    """A folder with a model.safetensors, which opens without a child process."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "vocab.json"):
        (folder / name).write_bytes((published / name).read_bytes())
    return folder


def _publish(base: Base, folder: Path, **changes: Any) -> None:
    publish_folder(
        folder,
        base=base,
        gpt_state=changes.get("gpt_state", base.gpt_state()),
        config=changes.get("config", base.config),
        vocab_json=base.vocab_json,
        voices=base.voices(),
        licence=base.licence,
        bf16=changes.get("bf16", False),
    )


def _refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_base(path)
    return str(caught.value)


def _change_model(folder: Path, change: Callable[[State], object]) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors")


def _require_equal(one: State, two: State) -> None:
    assert one.keys() == two.keys()
    for name, value in one.items():
        assert torch.equal(value, two[name]), name


# In


def test_a_folder_in_the_published_layout_opens_with_every_weight(made: Path, opened: Base) -> None:
    vocab_json = (made / "vocab.json").read_text(encoding="utf-8")
    ids = token_ids(vocab_json, made / "vocab.json")

    assert opened.source == made / "model.pth"
    assert opened.sizes.gpt.num_text_tokens == max(ids.values()) + 1
    assert (opened.sizes.dvae, opened.sizes.vocoder, opened.sizes.speaker) == (
        TINY.dvae,
        TINY.vocoder,
        TINY.speaker,
    )
    assert gpt_sizes(opened.gpt_state(), ids, opened.config) == opened.sizes.gpt
    assert opened.vocab_json == vocab_json
    _require_equal(opened.dvae_state(), torch.load(made / "dvae.pth", weights_only=True))
    assert torch.equal(opened.mel_stats(), torch.load(made / "mel_stats.pth", weights_only=True))
    voices = torch.load(made / "speakers_xtts.pth", weights_only=True)
    assert list(opened.voices()) == list(voices)
    latents, embedding = opened.voices()["Random Two"]
    assert torch.equal(latents, voices["Random Two"]["gpt_cond_latent"])
    assert torch.equal(embedding, voices["Random Two"]["speaker_embedding"])


def test_the_pickled_configuration_of_the_original_release_needs_stand_ins(made: Path) -> None:
    with pytest.raises(Exception, match="XttsConfig"):
        torch.load(made / "model.pth", weights_only=True)


def test_a_coqui_training_checkpoint_opens_without_its_optimizer(
    opened: Base, made: Path, tmp_path: Path
) -> None:
    run, originals = tmp_path / "GPT_XTTS_FT", tmp_path / "XTTS_v2.0_original_model_files"
    run.mkdir()
    originals.mkdir()
    (originals / "vocab.json").write_bytes((made / "vocab.json").read_bytes())
    (run / "config.json").write_bytes((made / "config.json").read_bytes())
    state = {f"xtts.gpt.{name}": value for name, value in opened.gpt_state().items()}
    # Names of the v1 era for the same tensors.
    state["xtts.gpt.gpt.wte.weight"] = state["xtts.gpt.mel_embedding.weight"]
    state["xtts.gpt.gpt_inference.lm_head.1.bias"] = state["xtts.gpt.mel_head.bias"]
    voice = opened.voice_state()
    state |= {f"xtts.hifigan_decoder.{name}": value for name, value in voice.items()}
    state["xtts.mel_stats"] = opened.mel_stats()
    state |= {f"dvae.{name}": value for name, value in opened.dvae_state().items()}
    state["torch_mel_spectrogram_dvae.mel_stft.window"] = torch.ones(4)
    optimizer = [{"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 5e-6}]}]
    for step in (9, 10):
        content = {"config": {}, "model": state, "optimizer": optimizer, "step": step}
        torch.save(content, run / f"checkpoint_{step}.pth")

    base = open_base(run)

    assert base.source.name == "checkpoint_10.pth"
    _require_equal(base.gpt_state(), opened.gpt_state())
    _require_equal(base.voice_state(), opened.voice_state())
    _require_equal(base.dvae_state(), opened.dvae_state())
    assert base.licence == PUBLISHED_LICENCE


def test_code_in_a_model_never_runs(made: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.system, (f"touch {tmp_path / 'canary'}",))

    for name in ("config.json", "vocab.json"):
        (tmp_path / name).write_bytes((made / name).read_bytes())
    torch.save({"model": {"gpt.w": torch.ones(1)}, "config": Trap()}, tmp_path / "model.pth")

    message = _refusal(tmp_path)

    assert not (tmp_path / "canary").exists()
    assert f"{tmp_path / 'model.pth'} cannot be used" in message
    assert "could run code" in message
    assert list((tmp_path / "cache" / "xtts-bases").glob("*/base.json")) == []


# Out


def test_what_is_published_opens_again_with_equal_weights(model: Path, opened: Base) -> None:
    base = open_base(model)

    _require_equal(base.gpt_state(), opened.gpt_state())
    _require_equal(base.voice_state(), opened.voice_state())
    assert torch.equal(base.mel_stats(), opened.mel_stats())
    assert base.sizes.gpt == opened.sizes.gpt
    assert base.mel_stats_hash() == opened.mel_stats_hash()


def test_the_published_pickles_load_in_plain_torch(published: Path, opened: Base) -> None:
    state = torch.load(published / "model.pth", weights_only=True)["model"]
    voices = torch.load(published / "speakers_xtts.pth", weights_only=True)
    dvae = torch.load(published / "dvae.pth", weights_only=True)

    own = {f"gpt.{name}": value for name, value in opened.gpt_state().items()}
    own |= {f"hifigan_decoder.{name}": value for name, value in opened.voice_state().items()}
    _require_equal(state, own | {"mel_stats": opened.mel_stats()})
    assert list(voices["Random One"]) == ["gpt_cond_latent", "speaker_embedding"]
    _require_equal(dvae, opened.dvae_state())
    assert (published / "LICENSE-WEIGHTS.txt").read_text(encoding="utf-8").strip() == RANDOM_LICENCE


def test_bf16_halves_the_gpt_and_nothing_else(opened: Base, tmp_path: Path) -> None:
    _publish(opened, tmp_path / "out", bf16=True)

    state = torch.load(tmp_path / "out" / "model.pth", weights_only=True)["model"]
    kinds = {name.split(".")[0]: set() for name in state}
    for name, value in state.items():
        kinds[name.split(".")[0]].add(value.dtype)
    assert kinds["gpt"] == {torch.bfloat16}
    assert torch.bfloat16 not in kinds["hifigan_decoder"] | kinds["mel_stats"]


def test_a_published_config_tells_the_tokens_and_no_paths_of_the_training_machine(
    opened: Base, tmp_path: Path
) -> None:
    arguments = opened.config["model_args"] | {
        "tokenizer_file": "elsewhere/vocab.json",
        "dvae_checkpoint": "elsewhere/dvae.pth",
        "gpt_number_text_tokens": 1,
    }
    config = opened.config | {"model_args": arguments, "languages": ["en"]}

    _publish(opened, tmp_path / "out", config=config)

    text = (tmp_path / "out" / "config.json").read_text(encoding="utf-8")
    written = json.loads(text)
    assert "elsewhere" not in text
    assert written["model_args"]["gpt_number_text_tokens"] == opened.sizes.gpt.num_text_tokens
    # Every language that the vocabulary has a token for.
    assert written["languages"][0] == "en"
    assert {"zh-cn", "hi"} <= set(written["languages"])


# Broken


def test_without_dvae_a_base_opens_for_speaking_but_not_for_training(model: Path) -> None:
    base = open_base(model)

    assert not base.has_dvae
    with pytest.raises(CheckpointError, match="Copy the dvae.pth"):
        base.dvae_state()


@pytest.mark.parametrize("name", ["config.json", "vocab.json"])
def test_a_missing_file_is_named(model: Path, name: str) -> None:
    (model / name).unlink()

    message = _refusal(model)

    assert f"has no {name}" in message
    assert f"Copy the {name}" in message


def test_a_vocabulary_of_another_model_is_told_apart(model: Path) -> None:
    vocab = json.loads((model / "vocab.json").read_text(encoding="utf-8"))
    vocab["model"]["vocab"]["another"] = 277
    (model / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")

    message = _refusal(model)

    assert "vocab.json has 278 tokens, but the model needs 277" in message


def test_a_vocabulary_of_the_right_size_passes(opened: Base) -> None:
    ids = token_ids(opened.vocab_json, Path("vocab.json"))

    check_vocabulary(ids, opened.sizes.gpt, Path("vocab.json"))


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("config.json", "[1]", "is not a JSON object"),
        ("config.json", '{"model": "vits"}', "'vits'; expected xtts"),
        ("vocab.json", "{}", "is not an XTTS vocabulary"),
        ("vocab.json", "not json", "is not an XTTS vocabulary"),
    ],
)
def test_a_damaged_text_file_is_named(model: Path, name: str, text: str, expected: str) -> None:
    (model / name).write_text(text, encoding="utf-8")

    message = _refusal(model)

    assert str(model / name) in message
    assert expected in message


def _misshape(state: State) -> None:
    state["gpt.text_head.weight"] = torch.zeros(5, 64)


def _shrink_bias(state: State) -> None:
    state["hifigan_decoder.waveform_decoder.conv_pre.bias"] = torch.zeros(3)


CHANGES = {
    "missing": (
        lambda state: state.pop("gpt.final_norm.weight"), "missing: final_norm.weight"),
    "misshapen": (
        _misshape, "text_head.weight (5, 64) instead of (277, 64)"),
    "unknown": (
        lambda state: state.update({"gpt.more": torch.ones(1)}), "unexpected: more"),
    "no perceiver": (
        lambda state: state.pop("gpt.conditioning_perceiver.latents"), "XTTS v1"),
    "misshapen vocoder": (
        _shrink_bias, "conv_pre.bias (3,) instead of"),
    "mel statistics": (
        lambda state: state.update({"mel_stats": torch.ones(3)}), "shape (3,); expected (80,)"),
    "no mel statistics": (
        lambda state: state.pop("mel_stats"), "Copy the mel_stats.pth"),
    "no gpt": (
        lambda state: [state.pop(name) for name in list(state) if name.startswith("gpt.")],
        "does not contain a GPT"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_a_weight_that_does_not_fit_is_named_with_its_file(model: Path, case: str) -> None:
    change, expected = CHANGES[case]
    _change_model(model, change)

    message = _refusal(model)

    assert str(model / "model.safetensors") in message
    assert expected in message


def test_a_cut_off_safetensors_is_refused(model: Path) -> None:
    whole = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(whole[:-100])

    assert "model.safetensors cannot be read" in _refusal(model)


def test_a_folder_without_weights_says_what_to_give(tmp_path: Path) -> None:
    assert "Choose a folder with model.pth" in _refusal(tmp_path)


# Once


def test_a_base_is_converted_once_and_again_when_its_contents_change(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversions = []
    convert = folder_module._convert
    monkeypatch.setattr(
        folder_module, "_convert", lambda *files: conversions.append(1) or convert(*files)
    )

    first = open_base(model)
    again = open_base(model)
    _change_model(model, lambda state: state["mel_stats"].mul_(2))
    changed = open_base(model)

    assert len(conversions) == 2
    assert again == first
    assert changed != first
    assert torch.equal(changed.mel_stats(), 2 * first.mel_stats())


def test_an_old_file_is_not_read_again_to_know_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in model.iterdir():
        os.utime(path, (1e9, 1e9))
    first = open_base(model)
    monkeypatch.setattr(converted, "content_hash", lambda path: pytest.fail("read again"))

    again = open_base(model)

    assert again == first


def test_a_conversion_that_was_cut_off_or_damaged_is_made_again(model: Path) -> None:
    base = open_base(model)
    path = base.folder / "gpt.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    (base.folder.parent / f".{base.folder.name}-left").mkdir()

    again = open_base(model)

    assert again.gpt_state().keys()
    assert list(base.folder.parent.glob(".*-left")) == []


def test_two_that_open_at_once_convert_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conversions, found = [], []
    convert = folder_module._convert
    both = threading.Barrier(2)
    monkeypatch.setattr(
        folder_module, "_convert", lambda *files: conversions.append(1) or convert(*files)
    )

    def open_together() -> None:
        both.wait()
        found.append(open_base(model))

    threads = [threading.Thread(target=open_together) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(conversions) == 1
    assert found[0] == found[1]


# Random


def test_without_a_base_there_is_a_random_one_made_once_by_seed() -> None:
    first, again, other = open_base(None), open_base(None), open_base(None, seed=1)

    assert first == again
    assert first != other
    assert not torch.equal(
        first.gpt_state()["mel_head.weight"], other.gpt_state()["mel_head.weight"]
    )
    assert first.licence == RANDOM_LICENCE
    assert first.has_dvae


def test_the_random_base_does_not_disturb_random_numbers() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)

    torch.manual_seed(3)
    open_base(None, seed=2)

    assert torch.equal(torch.rand(1), expected)


def test_the_script_writes_the_published_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["make_xtts", str(tmp_path / "made")])

    main()

    names = {path.name for path in (tmp_path / "made").iterdir()}
    assert names == {
        "model.pth", "config.json", "vocab.json", "dvae.pth", "mel_stats.pth",
        "speakers_xtts.pth", "LICENSE-WEIGHTS.txt",
    }  # fmt: skip
    assert torch.load(tmp_path / "made" / "model.pth", weights_only=True).keys() == {"model"}
    assert "model.pth" in capsys.readouterr().out

"""Speech through the original package: what is asked of its process, and what may go wrong."""

import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainer.core.errors import CheckpointError, DataError
from trainer.models.indextts2.checkpoint.weights import load, terms
from trainer.models.indextts2.inference.synthesis import silence, synthesize
from trainer.models.indextts2.options import Options
from trainer.models.indextts2.training.synthetic import make_synthetic
from trainer.models.indextts2.upstream.package import _FILES, Original

PACKAGE = '''
"""Stands for the package: notes what it is given, and speaks or fails as the text says."""
import json
from pathlib import Path

import numpy


class QwenEmotion:
    def __init__(self, folder):
        raise RuntimeError("emotions of a text are not wanted")


class IndexTTS2:
    def __init__(self, cfg_path, model_dir, device, use_cuda_kernel):
        QwenEmotion("qwen")
        names = sorted(path.name for path in Path(model_dir).iterdir())
        config = Path(cfg_path).read_text()
        seen = {"files": names, "device": device, "config": config}
        Path(__file__).with_name("seen.json").write_text(json.dumps(seen))

    def infer(self, reference, text, out, max_mel_tokens):
        if text == "fail":
            raise RuntimeError("shapes differ")
        if text == "lack":
            raise FileNotFoundError("campplus_cn_common.bin")
        if text == "die":
            raise SystemExit(7)
        wave = numpy.full((max_mel_tokens, 1), 16384, numpy.int16)
        return None if text == "nothing" else (22050, wave)
'''


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """A folder with a file for everything that the package needs, and a package that stands in."""
    root = tmp_path_factory.mktemp("original")
    for name in [*_FILES, "gpt.pth", "recording.wav"]:
        path = root / "checkpoints" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("s2mel: {depth: 13}\ngpt: {layers: 99}\n")
    (root / "packages" / "indextts").mkdir(parents=True)
    (root / "packages" / "indextts" / "__init__.py").touch()
    (root / "packages" / "indextts" / "infer_v2.py").write_text(PACKAGE)
    (root / "packages" / "torch.py").write_text("def manual_seed(seed): pass\n")
    reference = str(root / "checkpoints" / "recording.wav")
    return Original(sys.executable, str(root / "checkpoints"), reference, limit_s=60)


@pytest.fixture
def packages(original: Original, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = Path(original.folder).parent / "packages"
    monkeypatch.setenv("PYTHONPATH", str(found))
    return found


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path_factory.getbasetemp() / "original-cache"))


def make_voice(original: Original) -> tuple[Any, dict[str, Any]]:
    """Return a tiny random model that speaks through a package, and its facts."""
    options = Options(
        original_python=original.python,
        original_folder=original.folder,
        original_reference=original.reference,
        original_limit_s=60,
    )
    facts = make_synthetic(None, options, [], "").facts
    return load(None, options, facts), facts


def test_the_package_speaks_with_the_models_weights_and_its_own_everything_else(
    original: Original, packages: Path
) -> None:
    model, facts = make_voice(original)

    speech = synthesize(model, facts, "hello", "nobody")

    seen = json.loads((packages / "indextts" / "seen.json").read_text())
    assert (speech.sample_rate, len(speech.wave)) == (22050, 1500)
    np.testing.assert_array_equal(speech.wave, np.float32(0.5))
    assert {"gpt.pth", "config.yaml", "s2mel.pth", "hf_cache", "feat1.pt"} <= set(seen["files"])
    assert "depth: 13" in seen["config"]
    assert "layers: 2" in seen["config"]
    assert seen["device"] == "cpu"
    assert (Path(original.folder) / "gpt.pth").read_text().startswith("s2mel")
    assert not list((Path(os.environ["TIMBRE_CACHE"]) / "indextts2-spoken").iterdir())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fail", "failed: RuntimeError: shapes differ"),
        ("lack", "this is missing: FileNotFoundError: campplus_cn_common.bin"),
        ("nothing", "failed: it returned no audio"),
        ("die", "ended with code 7"),
    ],
)
def test_what_went_wrong_in_the_package_is_told(
    original: Original, packages: Path, text: str, reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        original.speak(text, lambda folder: (folder / "config.yaml").touch(), most_codes=9)


def test_an_environment_without_the_package_is_named(
    original: Original, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(CheckpointError, match="the package indextts"):
        original.speak("hello", lambda folder: None, most_codes=9)


def test_a_package_that_takes_too_long_is_ended(original: Original, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    slow = replace(original, python=str(python), limit_s=0.1)

    with pytest.raises(CheckpointError, match="more than 0 s"):
        slow.speak("hello", lambda folder: None, most_codes=9)


def test_everything_that_is_missing_is_named_at_once(original: Original, tmp_path: Path) -> None:
    lacks = replace(original, python="", folder=str(tmp_path), reference="gone.wav").lacks()

    assert original.lacks() == ""
    assert "the Python of its environment" in lacks
    assert "a reference recording (gone.wav)" in lacks
    assert str(tmp_path / "s2mel.pth") in lacks
    assert "the vocoder BigVGAN" in lacks


def test_without_the_package_the_model_is_silent_and_says_why(original: Original) -> None:
    silent, facts = make_voice(Original())
    unheard, _ = make_voice(replace(original, reference=""))

    assert "cannot turn the codes" in silence(silent)
    assert "a reference recording" in silence(unheard)
    assert silence(make_voice(original)[0]) == ""
    with pytest.raises(DataError, match="cannot turn the codes"):
        synthesize(silent, facts, "hello", "nobody")


def test_the_licence_of_each_weight_is_told_where_it_is_used() -> None:
    every = Options(w2v_bert="a", codec="b", original_folder="c")

    assert terms(None, Options()).startswith("These weights are random numbers")
    assert terms(None, Options()) in terms(None, every)
    for name in ("MIT", "CC-BY-NC-4.0", "bilibili model licence"):
        assert name in terms(None, every)
        assert name not in terms(None, Options())

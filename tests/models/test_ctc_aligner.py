"""CTC alignment finds boundaries that are known: letters are tones, and the model hears tones."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor, nn

from trainer.config.resolve import with_absolute_paths
from trainer.core.errors import CheckpointError, ConfigError, DataError, StopRequested
from trainer.core.run_config import Choice, DataConfig, RunConfig
from trainer.core.types import Clip
from trainer.models._layers.mel import MelSettings
from trainer.models.fastspeech2 import Options, tokens
from trainer.models.fastspeech2.alignment.ctc_aligner import (
    align_clips,
    find_label,
    load_recogniser,
    share_frames,
)
from trainer.models.fastspeech2.training.featurizer import SpeechFeaturizer
from trainer.models.fastspeech2.training.survey import survey
from trainer.training.assemble import check_before_start

LABELS = ["-", "|", "A", "B", "C", "D"]
TONES = {"a": 440.0, "b": 800.0, "c": 1300.0, "d": 2100.0}
RATE, HOP = 16000, 160
FRAME_S = 256 / 22050


class ToneReader(nn.Module):
    """Hears a tone as the letter A to D, and silence as blank, every 10 ms."""

    def __init__(self, num_labels: int = 6) -> None:
        super().__init__()
        angles = 2 * np.pi * np.arange(320) / RATE * np.array(list(TONES.values()))[:, None]
        waves = np.concatenate([np.cos(angles), np.sin(angles)])[:, None] / 160
        self.register_buffer("waves", torch.tensor(waves, dtype=torch.float32))
        self.num_labels = num_labels

    def forward(self, wave: Tensor) -> Tensor:
        """Return logits (1, frames, labels) of audio (1, T_wav)."""
        heard = nn.functional.conv1d(wave[:, None], self.waves, stride=160, padding=80)
        power = heard[:, :4].square() + heard[:, 4:].square()
        rest = torch.full_like(power[:, :1], 0.21)
        scores = [rest, torch.zeros_like(rest), power.sqrt()]
        return 100 * torch.cat(scores, 1)[:, : self.num_labels].transpose(1, 2)


def write_model(folder: Path, about: Any = None, network: nn.Module | None = None) -> Path:
    path = folder / "tones.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(network or ToneReader()).save(str(path))
    path.with_suffix(".json").write_text(json.dumps(about or {"labels": LABELS}))
    return path


def make_sound(hz: float, count: int, rate: int = 22050) -> np.ndarray:
    """Return a tone that swells and fades within 10 ms, as a mouth does; (count,)."""
    steps = np.arange(count)
    swell = np.minimum(1, np.minimum(steps, steps[::-1]) / (0.01 * rate))
    return 0.4 * swell * np.sin(2 * np.pi * hz * steps / rate)


def speak(path: Path, parts: list[tuple[str, float]], text: str) -> tuple[Clip, np.ndarray]:
    """Write tones and silences; return the clip and where the parts begin, in seconds."""
    rate = 22050
    seconds = np.array([length for _, length in parts])
    waves = [make_sound(TONES.get(letter, 0.0), round(length * rate)) for letter, length in parts]
    noise = np.random.default_rng(0).normal(0, 1e-4, sum(map(len, waves)))
    soundfile.write(path, np.concatenate(waves) + noise, rate)
    clip = Clip(path.stem, str(path), text, "ann", "en", 1.0, rate, "train", "train.csv", 2)
    return clip, np.cumsum(seconds) - seconds


PARTS = [
    (" ", 0.12), ("a", 0.083), ("b", 0.17), (" ", 0.2), ("c", 0.061), ("a", 0.24), ("d", 0.1),
    (" ", 0.15),
]  # fmt: skip


def run_survey(clips: list[Clip], model: Path, **options: Any) -> Any:
    chosen = Options(aligner="ctc", ctc_model=str(model), **options)
    featurizer = SpeechFeaturizer(MelSettings(), chosen.trim_silence)
    features = {clip.id: featurizer(clip) for clip in clips}
    return survey(features, clips, chosen, None, lambda phase, done, total: None)


def starts_of(features: Any) -> np.ndarray:
    return (np.cumsum(features["durations"]) - features["durations"]) * FRAME_S


def test_every_boundary_is_found_within_a_frame(tmp_path: Path) -> None:
    clip, starts = speak(tmp_path / "one.wav", PARTS, "ab cad")

    corpus = run_survey([clip], write_model(tmp_path))

    found = corpus.features["one"]
    assert [corpus.facts["symbols"][number] for number in found["tokens"]] == [
        "<s>", "a", "b", " ", "c", "a", "d", "</s>",
    ]  # fmt: skip
    assert np.abs(starts_of(found) - starts).max() <= FRAME_S
    assert found["durations"].sum() == len(found["mel"])


def test_punctuation_takes_the_silence_and_every_mark_a_frame(tmp_path: Path) -> None:
    clip, starts = speak(tmp_path / "one.wav", PARTS, "ab, cad!")

    found = run_survey([clip], write_model(tmp_path)).features["one"]

    letters = [0, 1, 2, 3, 5, 6, 7, 8]
    assert np.abs(starts_of(found)[letters] - starts).max() <= FRAME_S
    assert found["durations"].min() >= 3


def test_trimmed_clips_are_aligned_as_they_were_trimmed(tmp_path: Path) -> None:
    quiet_first = [(" ", 1.0), *PARTS[1:]]
    clip, starts = speak(tmp_path / "one.wav", quiet_first, "ab cad")

    found = run_survey([clip], write_model(tmp_path), trim_silence=True).features["one"]

    trimmed = starts[1:] - starts[1] + 0.05
    # trimming works in steps of 20 ms
    assert np.abs(starts_of(found)[1:] - trimmed).max() <= FRAME_S + 0.02


def test_clips_that_cannot_be_aligned_are_named_with_a_reason(tmp_path: Path) -> None:
    model = write_model(tmp_path)
    good, _ = speak(tmp_path / "good.wav", PARTS, "ab cad")
    foreign = replace(good, id="foreign", text="xyz")
    hasty = replace(good, id="hasty", text="a" * 60)
    moved = replace(good, id="moved")
    featurizer = SpeechFeaturizer(MelSettings(), False)
    clips = [good, foreign, hasty, moved]
    features = {clip.id: featurizer(clip) for clip in clips}
    clips[3] = replace(moved, audio_path=str(tmp_path / "gone.wav"))

    options = Options(aligner="ctc", ctc_model=str(model))
    corpus = survey(features, clips, options, None, lambda phase, done, total: None)

    assert set(corpus.features) == {"good"}
    assert "no symbol that the CTC model has a label for" in corpus.unusable["foreign"]
    assert "needs at least 119 frames of the CTC model" in corpus.unusable["hasty"]
    assert "gone.wav" in corpus.unusable["moved"]


def test_a_corpus_without_any_alignable_clip_is_refused(tmp_path: Path) -> None:
    clip, _ = speak(tmp_path / "one.wav", PARTS, "xyz")

    with pytest.raises(DataError, match="no symbol that the CTC model has a label for"):
        run_survey([clip], write_model(tmp_path))


def test_sounds_without_a_label_share_what_their_neighbours_leave(tmp_path: Path) -> None:
    # z sounds between a and d, in a tone the model does not know
    parts = [(" ", 0.1), ("a", 0.1), ("z", 0.15), ("d", 0.1), (" ", 0.1)]
    clip, starts = speak(tmp_path / "one.wav", parts, "azd")

    found = run_survey([clip], write_model(tmp_path)).features["one"]

    assert np.abs(starts_of(found) - starts).max() <= 1.5 * FRAME_S


def test_repeated_letters_that_run_together_still_get_their_frames(tmp_path: Path) -> None:
    clip, _ = speak(tmp_path / "one.wav", [(" ", 0.1), ("a", 0.3), (" ", 0.1)], "aa")

    found = run_survey([clip], write_model(tmp_path)).features["one"]

    assert found["durations"].min() >= 1
    assert abs(found["durations"][1:3].sum() * FRAME_S - 0.3) <= 2 * FRAME_S


def test_labels_are_found_in_any_case_and_never_the_blank(tmp_path: Path) -> None:
    recogniser = load_recogniser(write_model(tmp_path))

    wanted = ["A", "b", "\u00e1", " ", "z", "-", tokens.BEGIN]

    assert [find_label(symbol, recogniser) for symbol in wanted] == [2, 3, 2, 1, -1, -1, -1]


def test_peaks_share_the_time_between_them() -> None:
    mel = np.zeros((20, 4), np.float32)
    mel[10] = -10
    nan = float("nan")
    spans = np.array([[nan, nan], [2, 3], [6, 7], [nan, nan], [14, 15], [nan, nan]])
    is_sound = np.array([False, True, True, False, True, False])

    found = share_frames(spans, is_sound, mel)

    # Two letters meet halfway; the pause takes frames 9 to 11, which see the silence.
    assert found.tolist() == [1, 3, 5, 3, 7, 1]


def test_marks_without_silence_get_one_frame_each() -> None:
    spans = np.array([[0, 4], [np.nan, np.nan], [np.nan, np.nan], [4, 8]])

    found = share_frames(spans, np.array([True, False, False, True]), np.zeros((8, 4)))

    assert found.tolist() == [4, 1, 1, 2]


def test_the_network_may_return_lengths_too(tmp_path: Path) -> None:
    class WithLengths(ToneReader):
        def forward(self, wave: Tensor) -> tuple[Tensor, int]:
            return torch.zeros(1, wave.shape[1] // 160, self.num_labels), 1

    recogniser = load_recogniser(write_model(tmp_path, network=WithLengths()))

    assert recogniser(np.zeros(1600, np.float32)).shape == (1, 10, 6)


def test_a_stop_is_obeyed_at_the_next_clip(tmp_path: Path) -> None:
    clip, _ = speak(tmp_path / "one.wav", PARTS, "ab cad")
    recogniser = load_recogniser(write_model(tmp_path))

    def stop(done: int, total: int) -> None:
        raise StopRequested("Stopped.")

    with pytest.raises(StopRequested):
        align_clips(
            [clip],
            [np.array([1])],
            [np.zeros((9, 80))],
            ["<pad>", "a"],
            recogniser,
            is_trimmed=False,
            progress=stop,
        )


@pytest.mark.parametrize(
    ("about", "complaint"),
    [
        ([], "no list of labels"),
        ({"labels": "abc"}, "no list of labels"),
        ({"labels": ["-", "A", "A"]}, "repeats a label"),
        ({"labels": LABELS, "sample_rate": "fast"}, "sample rate"),
        ({"labels": LABELS, "blank": 6}, "from 0 to 5"),
        ({"labels": LABELS[:5]}, "shape .* here with 5 labels"),
    ],
)
def test_labels_that_do_not_fit_are_explained(tmp_path: Path, about: Any, complaint: str) -> None:
    path = write_model(tmp_path)
    path.with_suffix(".json").write_text(json.dumps(about))

    with pytest.raises(CheckpointError, match=complaint):
        load_recogniser(path)


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        ("absent", "does not exist"),
        ("no labels", "tones.json is missing"),
        ("not json", "cannot be read as JSON"),
        ("cut", "cannot be read as a TorchScript file"),
        ("weights", "cannot be read as a TorchScript file"),
    ],
)
def test_unfit_files_are_explained(tmp_path: Path, damage: str, complaint: str) -> None:
    path = write_model(tmp_path)
    labels = path.with_suffix(".json")
    deeds = {
        "absent": path.unlink,
        "no labels": labels.unlink,
        "not json": lambda: labels.write_text("{"),
        "cut": lambda: path.write_bytes(path.read_bytes()[:999]),
        "weights": lambda: torch.save({"model": torch.zeros(2)}, path),
    }
    deeds[damage]()

    with pytest.raises(CheckpointError, match=complaint):
        load_recogniser(path)


def test_a_network_that_fails_on_audio_is_refused(tmp_path: Path) -> None:
    class Picky(nn.Module):
        def forward(self, wave: Tensor) -> Tensor:
            return wave.reshape(3, 1, 7)

    with pytest.raises(CheckpointError, match="failed on one second of noise .*invalid for input"):
        load_recogniser(write_model(tmp_path, network=Picky()))


def test_the_aligner_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="ctc_model.*is empty.*Enter one"):
        Options(aligner="ctc")


def test_a_relative_path_is_kept_as_a_full_one_and_has_to_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    choice = Choice("fastspeech2", {"aligner": "ctc", "ctc_model": "models/tones.pt"})
    data = DataConfig(train_csv="train.csv")

    config = with_absolute_paths(RunConfig(data=data, family=choice))

    assert config.family.options["ctc_model"] == str(tmp_path / "models" / "tones.pt")
    with pytest.raises(ConfigError, match="under CTC model does not exist"):
        check_before_start(config)

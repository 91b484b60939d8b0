"""Findings: what is heard and read of clips that can be used, told and never dropped."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.helpers.clips import make_tone
from trainer.core.types import Clip
from trainer.data.audio.quality import Quality, measure_files, measure_wave
from trainer.data.lists.findings import find_outliers, leak_notes

RATE = 16_000
SILENCE = np.zeros(RATE // 2, np.float32)


def _hiss(seconds: float, level: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    return (level * rng.standard_normal(round(seconds * RATE))).astype(np.float32)


def _clip(number: int, text: str, split: str = "train", **more: object) -> Clip:
    facts = {"speaker": "ann", "language": "en", "duration_s": 2.0, "sample_rate": RATE}
    place = {"source": "train.csv", "line": number, "recording": f"talk{number}"}
    return Clip(f"id{number}", f"{number}.wav", text, split=split, **(facts | place | more))  # type: ignore[arg-type]


def _kinds(wave: np.ndarray) -> list[str]:
    quality = measure_wave(wave, RATE)
    assert quality is not None
    clip = _clip(1, "Hello there.")
    return [finding.kind for finding in find_outliers([clip], {clip.audio_path: quality})]


def test_an_ordinary_clip_has_no_findings() -> None:
    tone = make_tone(1.5, RATE)

    assert _kinds(np.concatenate([SILENCE[:2000], tone, SILENCE[:2000]])) == []


@pytest.mark.fault("D4", "D5")
@pytest.mark.parametrize(
    ("wave", "kind"),
    [
        (np.concatenate([np.clip(5 * make_tone(1.0), -1, 1), SILENCE[:4000]]), "clipped"),
        (0 * SILENCE, "silent"),
        (np.concatenate([0.002 * make_tone(1.0), SILENCE[:4000]]), "quiet"),
        (np.concatenate([SILENCE, SILENCE, make_tone(0.5), SILENCE[:4000]]), "mostly_silent"),
        (np.concatenate([make_tone(1.0), _hiss(0.5, 0.006)]), "noisy_tail"),
        (np.concatenate([SILENCE[:4000], make_tone(1.0)]), "cut_off"),
    ],
)
def test_what_is_wrong_with_a_sound_is_heard(wave: np.ndarray, kind: str) -> None:
    assert _kinds(wave) == [kind]


def test_a_wave_at_full_scale_that_is_not_cut_off_is_not_clipped() -> None:
    quality = measure_wave(make_tone(1.0, RATE, hz=3000.0) / 0.3, RATE)

    assert quality is not None
    assert quality.clipped_s < 0.002


def test_files_are_measured_once_and_unreadable_ones_left_out(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", make_tone(1.0, RATE), RATE)
    (tmp_path / "b.wav").write_bytes(b"no audio")
    paths = [str(tmp_path / "a.wav"), str(tmp_path / "b.wav"), str(tmp_path / "a.wav"), ""]

    found = measure_files(paths)

    assert list(found) == [paths[0]]
    assert isinstance(found[paths[0]], Quality)


@pytest.mark.fault("C9")
def test_a_rate_far_from_the_usual_one_is_told() -> None:
    usual = [_clip(n, f"Twenty five letters or so {n}.") for n in range(30)]
    short = _clip(99, "Yes.")

    found = find_outliers([*usual, short], {})

    assert [(finding.kind, finding.clip.line) for finding in found] == [("pace", 99)]
    assert "1.5 letters per second" in found[0].words


def test_repeated_and_leaked_texts_are_told() -> None:
    clips = [
        _clip(1, "Hello there."), _clip(2, "hello, there"), _clip(3, "Good day."),
        _clip(4, "Good day!", "val"),
    ]  # fmt: skip

    found = find_outliers(clips, {})

    assert [(finding.kind, finding.clip.line) for finding in found] == [
        ("repeated", 2), ("leaked_text", 3),
    ]  # fmt: skip


def test_recordings_and_speakers_in_the_wrong_part_are_told() -> None:
    clips = [
        _clip(1, "One.", recording="talk_a"), _clip(2, "Two.", recording="talk_b"),
        _clip(3, "Three.", "val", recording="talk_b"),
        _clip(4, "Four.", "val", recording="talk_c", speaker="bob"),
    ]  # fmt: skip

    shared, stranger = leak_notes(clips)

    assert "1 recordings are in both train and eval (talk_b)" in shared
    assert stranger == "Speakers in eval that are not in train: bob."
    assert leak_notes(clips[:2]) == []

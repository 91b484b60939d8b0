"""Long recordings become clips: cut in pauses, named, listed, transcribed, and never cut twice."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

from trainer.commands.main import main
from trainer.core.errors import CheckpointError, DataError, MissingDependency, RunExists
from trainer.core.run_config import DataConfig
from trainer.data.lists.manifest import read_manifest
from trainer.data.recordings.segmentation import Recording, find_recordings, measure_levels
from trainer.data.recordings.silence import FRAME_S, SegmentationSettings, find_clips, find_speech
from trainer.inference.recording_cuts import cut_recordings
from trainer.inference.transcription import open_transcriber

RATE = 16_000


def _levels(*parts: tuple[float, float]) -> np.ndarray:
    """Return levels (frames,) of parts, each so many seconds at so many dB."""
    return np.concatenate([np.full(round(length_s / FRAME_S), db) for length_s, db in parts])


def _record(path: Path, *parts: tuple[float, float]) -> Path:
    """Write a recording of tones, each so many seconds at an amplitude."""
    pieces = []
    for length_s, amplitude in parts:
        at_s = np.arange(round(length_s * RATE)) / RATE
        pieces.append(amplitude * np.sin(2 * np.pi * 220 * at_s))
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, np.concatenate(pieces), RATE)
    return path


def _cut(recordings: list[Recording], out: Path, **given: Any) -> tuple[Path, list[dict[str, Any]]]:
    told: list[dict[str, Any]] = []
    chosen = {"language": "en", "open_recogniser": None} | given
    cutting = chosen.pop("cutting", SegmentationSettings())
    return cut_recordings(recordings, out, cutting, echo=told.append, **chosen), told


def test_clips_end_in_pauses_and_the_longer_pause_is_taken() -> None:
    speech, short, long = (4.0, -20.0), (0.3, -70.0), (0.8, -70.0)
    levels = _levels((1.0, -70.0), speech, short, speech, long, speech, short, speech, (1.0, -70.0))

    first, second = find_clips(levels, SegmentationSettings())

    assert first.start_s == pytest.approx(1.0 - 0.12)
    assert first.end_s == pytest.approx(9.3 + 0.12)
    assert second.start_s == pytest.approx(10.1 - 0.12)
    assert second.end_s == pytest.approx(18.4 + 0.12)


def test_speech_without_a_pause_is_cut_where_it_is_faintest() -> None:
    levels = _levels((8.0, -20.0), (0.1, -26.0), (6.0, -20.0), (2.0, -70.0))

    first, second = find_clips(levels, SegmentationSettings(longest_s=10.0))

    assert 8.0 <= first.end_s <= 8.1
    assert second.start_s == first.end_s


def test_the_end_of_long_speech_is_not_torn_off_as_too_short() -> None:
    levels = _levels((10.7, -20.0), (0.1, -30.0), (0.1, -20.0), (2.0, -70.0))

    clips = find_clips(levels, SegmentationSettings())

    assert sum(clip.length_s for clip in clips) >= 10.9
    assert min(clip.length_s for clip in clips) >= 1.0


@pytest.mark.parametrize("seed", range(8))
def test_no_clip_is_too_long_none_overlap_and_no_speech_is_lost(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cutting = SegmentationSettings(shortest_s=0.1, longest_s=6.0)
    parts = [(1.0, -80.0)]
    for _ in range(30):
        parts.append((float(rng.choice([0.2, 1.0, 4.0, 20.0])), -20.0))
        parts.append((float(rng.uniform(0.05, 2.0)), -80.0))
    levels = _levels(*parts) + rng.normal(0, 1, sum(round(s / FRAME_S) for s, _ in parts))

    clips = find_clips(levels, cutting)
    covered = sum(clip.length_s for clip in clips)
    speech = sum(run.length_s for run in find_speech(levels, cutting.pause_s))

    assert max(clip.length_s for clip in clips) <= cutting.longest_s + 1e-6
    assert all(a.end_s <= b.start_s + 1e-6 for a, b in zip(clips, clips[1:], strict=False))
    assert covered >= speech


def test_silence_has_no_clips_and_steady_sound_is_all_taken() -> None:
    assert find_clips(np.zeros(0), SegmentationSettings()) == []
    assert find_clips(_levels((5.0, -100.0)), SegmentationSettings()) == []
    assert (
        sum(clip.length_s for clip in find_clips(_levels((30.0, -20.0)), SegmentationSettings()))
        > 29
    )


def test_channels_of_opposite_phase_are_no_silence(tmp_path: Path) -> None:
    wave = 0.5 * np.sin(np.arange(RATE) / 10)
    soundfile.write(tmp_path / "a.wav", np.stack([wave, -wave], axis=1), RATE)

    levels = measure_levels(tmp_path / "a.wav")

    assert levels.shape == (100,)
    assert levels.min() > -10


def test_folders_name_who_speaks_and_every_clip_has_a_name_of_its_own(tmp_path: Path) -> None:
    for name in ("ada/one.wav", "bob/one.wav", "bob one.wav", "Bob_one.wav", "<b>|,.wav"):
        _record(tmp_path / name, (0.1, 0.5))
    (tmp_path / "._one.wav").touch()
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "one-0001.wav").touch()

    recordings = find_recordings(tmp_path, leave_out=tmp_path / "cut")
    found = {recording.stem: recording.speaker for recording in recordings}
    _record(tmp_path / "a" / "new.wav", (0.1, 0.5))
    later = {recording.stem for recording in find_recordings(tmp_path, leave_out=tmp_path / "cut")}

    assert len({stem.lower() for stem in found}) == 5
    assert {found["ada-one"], found["bob-one"]} == {"ada", "bob"}
    assert not any(set(stem) & set("<>|, ") for stem in found)
    assert later == {*found, "a-new"}
    assert {one.speaker for one in find_recordings(tmp_path, "eve")} == {"eve"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="contains no recording"):
        find_recordings(tmp_path / "empty")


@pytest.fixture
def tape(tmp_path: Path) -> list[Recording]:
    """A tape of three sentences, and a file that is no sound."""
    sentence, pause = (2.0, 0.5), (1.5, 0.0)
    _record(tmp_path / "raw" / "tape.wav", sentence, pause, sentence, pause, sentence)
    (tmp_path / "raw" / "torn.wav").write_bytes(b"RIFF")
    return find_recordings(tmp_path / "raw", "ada")


def test_a_tape_becomes_clips_whose_texts_wait_to_be_written(
    tape: list[Recording], tmp_path: Path
) -> None:
    path, told = _cut(tape, tmp_path / "cut")

    manifest = read_manifest(DataConfig(train_csv=str(path)))

    assert [problem.kind for problem in manifest.problems] == ["empty_text"] * 3
    assert told[-1]["clips"] == told[-1]["without_text"] == 3
    assert told[-1]["recordings_s"] == pytest.approx(9.0)
    assert "torn.wav" in told[-1]["faults"][0]
    lengths = [soundfile.info(path.parent / f"tape-000{n}.wav").duration for n in (1, 2, 3)]
    assert lengths == pytest.approx([2.12, 2.24, 2.12], abs=0.03)


def test_a_cut_that_ended_anywhere_goes_on_where_it_was(
    tape: list[Recording], tmp_path: Path
) -> None:
    heard: list[str] = []

    def hear(most: int) -> Callable[[Path], str]:
        def write_down(path: Path) -> str:
            if len(heard) == most:
                raise KeyboardInterrupt
            heard.append(path.name)
            return f"words | of {path.stem}"

        return write_down

    with pytest.raises(KeyboardInterrupt):
        _cut(tape, tmp_path / "cut", open_recogniser=lambda: hear(1))
    with (tmp_path / "cut" / "cutting.jsonl").open("a") as file:
        file.write('{"clip": "tape-0002.wav", "te')
    path, told = _cut(tape, tmp_path / "cut", open_recogniser=lambda: hear(9))
    again, _ = _cut(tape, tmp_path / "cut", open_recogniser=lambda: hear(9))
    clips = read_manifest(DataConfig(train_csv=str(path), eval_fraction=0.0)).clips

    _record(tape[0].path, (2.0, 0.5))
    os.utime(tape[0].path, ns=(1, 1))
    _, anew = _cut(tape, tmp_path / "cut")

    assert (anew[-1]["clips"], anew[-1]["without_text"]) == (1, 1)
    assert heard == [f"tape-000{n}.wav" for n in (1, 2, 3)]
    assert [(clip.text, clip.speaker) for clip in clips] == [
        (f"words | of tape-000{n}", "ada") for n in (1, 2, 3)
    ]
    assert told[-1]["without_text"] == 0
    assert again == path


def test_what_lies_in_a_folder_is_never_cut_over(tape: list[Recording], tmp_path: Path) -> None:
    _cut(tape, tmp_path / "cut")

    with pytest.raises(RunExists, match="cut with other settings"):
        _cut(tape, tmp_path / "cut", cutting=SegmentationSettings(longest_s=5.0))
    with pytest.raises(RunExists, match="holds other files"):
        _cut(tape, tmp_path / "raw")
    for odd in (
        SegmentationSettings(shortest_s=8.0),
        SegmentationSettings(0.1, 0.2, 0.1),
        SegmentationSettings(pause_s=float("nan")),
    ):
        with pytest.raises(DataError, match="are not possible"):
            _cut(tape, tmp_path / "new", cutting=odd)
    with pytest.raises(DataError, match=r"The recordings yielded no clips. torn\.wav"):
        _cut([tape[1]], tmp_path / "none")


def test_the_command_says_what_it_did(
    tape: list[Recording], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cut", "--audio", str(tmp_path / "raw"), "--out", str(tmp_path / "cut")]

    assert main(words) == 0
    said = capsys.readouterr().out
    assert main([*words, "--lines"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert "3 clips, 0.1 of 0.1 minutes" in said
    assert "3 clips have no text yet" in said
    assert lines[-1]["list"] == str(tmp_path / "cut" / "list.csv")


def test_a_disk_that_fills_up_keeps_what_is_cut(
    tape: list[Recording],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    words = ["cut", "--audio", str(tmp_path / "raw"), "--out", str(tmp_path / "cut")]
    with monkeypatch.context() as patched:
        patched.setattr("trainer.data.recordings.segmentation.write_wav", refuse)
        assert main(words) == 1
    said = capsys.readouterr().err

    assert "The split was interrupted" in said and "No space left on device" in said
    assert main(words) == 0


def test_whisper_is_optional_and_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Whisper:
        def __init__(self, model: str, **_: Any) -> None:
            if model == "absent":
                raise RuntimeError("Unable to open file 'model.bin'")

        def transcribe(self, path: str, **chosen: Any) -> tuple[list[Any], None]:
            asked.append(chosen["language"])
            if chosen["language"] == "xx":
                raise ValueError("'xx' is not a valid language code")
            return [SimpleNamespace(text=" Good"), SimpleNamespace(text=" day. ")], None

    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(MissingDependency, match="pip install faster-whisper"):
        open_transcriber("small", "en")
    monkeypatch.setitem(sys.modules, "faster_whisper", SimpleNamespace(WhisperModel=Whisper))
    with pytest.raises(CheckpointError, match="'absent' cannot be opened: Unable to open"):
        open_transcriber("absent", "en")

    assert open_transcriber("small", "pt-BR")(tmp_path / "a.wav") == "Good day."
    with pytest.raises(CheckpointError, match=r"could not transcribe a\.wav: 'xx' is not"):
        open_transcriber("small", "xx")(tmp_path / "a.wav")
    assert asked == ["pt", "xx"]

"""Recordings: long audio files, found in folders, measured block by block, cut into clip files."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from trainer.data.audio import to_mono, write_wav
from trainer.data.headers import CONVERT, AudioError, audio_facts
from trainer.data.slicing import FRAME_S, Cutting, Span, find_clips
from trainer.errors import DataError

AUDIO = (".wav", ".flac", ".ogg", ".mp3", ".opus", ".aiff", ".aif")
_BLOCK_FRAMES = 6000
_LONGEST_NAME = 80


@dataclass(frozen=True)
class Recording:
    """A file to cut, the start of its clips' names, and who speaks ("" where nobody said)."""

    path: Path
    stem: str
    speaker: str


def find_recordings(path: Path, speaker: str = "") -> list[Recording]:
    """List the recordings of a folder and below it, or the one file.

    Without a speaker, the first folder on the way to a recording names who speaks.

    Raises:
        DataError: there is none.
    """
    if path.is_file():
        return [Recording(path.absolute(), _safe(path.stem), speaker)]
    files = [file for file in sorted(path.rglob("*")) if file.suffix.lower() in AUDIO]
    if not files:
        what = "holds no recording" if path.is_dir() else "does not exist"
        raise DataError(
            f"{path} {what}. Give a recording ({', '.join(AUDIO)}), or a folder of them."
        )
    recordings: list[Recording] = []
    used: set[str] = set()
    for file in files:
        parts = file.relative_to(path).with_suffix("").parts
        stem = wanted = _safe("-".join(parts))
        while stem in used:
            stem = f"{wanted}-{len(used)}"
        used.add(stem)
        who = speaker or (parts[0] if len(parts) > 1 else "")
        recordings.append(Recording(file.absolute(), stem, who))
    return recordings


def cut_recording(
    recording: Recording, folder: Path, cutting: Cutting
) -> Iterator[tuple[str, Span]]:
    """Write the clips of a recording as 16-bit WAV at its own rate; yield their names and places.

    Raises:
        AudioError: it cannot be decoded.
    """
    facts = audio_facts(recording.path)
    spans = find_clips(measure_levels(recording.path), cutting)
    with soundfile.SoundFile(str(recording.path)) as file:
        for number, span in enumerate(spans, 1):
            first, last = (round(at_s * facts.sample_rate) for at_s in (span.start_s, span.end_s))
            # Read on, not sought: MP3 is exact only in order.
            while (gap := first - file.tell()) > 0:
                file.read(min(gap, 60 * facts.sample_rate), dtype="float32")
            wave = file.read(last - first, dtype="float32", always_2d=True)
            name = f"{recording.stem}-{number:04d}.wav"
            write_wav(folder / name, to_mono(wave), facts.sample_rate)
            yield name, span


def measure_levels(path: Path) -> np.ndarray:
    """Return the level of every 10 ms of a recording, (frames,) dB.

    Raises:
        AudioError: it cannot be decoded.
    """
    powers = [np.zeros(0)]
    try:
        with soundfile.SoundFile(str(path)) as file:
            size = max(1, round(file.samplerate * FRAME_S))
            for block in file.blocks(size * _BLOCK_FRAMES, dtype="float32", always_2d=True):
                # Channels are added as powers, so that opposite phases hide nothing.
                power = np.square(block, dtype=np.float64).sum(axis=1)  # (samples,)
                powers.append(power[: len(power) // size * size].reshape(-1, size).mean(axis=1))
    except (soundfile.LibsndfileError, RuntimeError):
        raise AudioError(
            "truncated_audio", f"{path.name} cannot be decoded to its end.", CONVERT
        ) from None
    return 10 * np.log10(np.maximum(np.nan_to_num(np.concatenate(powers)), 1e-10))


def _safe(name: str) -> str:
    """Return a name that every file system and every list takes: no separators, no controls."""
    kept = re.sub(r"[^\w.-]+", "_", name).strip("._-")
    return kept[:_LONGEST_NAME] or "recording"

"""Find long recordings in folders, measure their levels in blocks and cut them into clips."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from trainer.core.errors import DataError
from trainer.data.audio.audio_io import to_mono, write_wav
from trainer.data.audio.headers import CONVERT, AudioError, audio_facts
from trainer.data.recordings.silence import FRAME_S, SegmentationSettings, Span, find_clips

AUDIO = (".wav", ".flac", ".ogg", ".mp3", ".opus", ".aiff", ".aif")
_BLOCK_FRAMES = 6000  # A minute of 10 ms frames, so that memory does not grow with the length.
_LONGEST_NAME = 80  # File systems allow 255 bytes; leaves room for non-ASCII letters and a number.


@dataclass(frozen=True)
class Recording:
    """A file to cut, the prefix of its clips' names, and its speaker ("" if unknown)."""

    path: Path
    stem: str
    speaker: str


def find_recordings(
    path: Path, speaker: str = "", leave_out: Path | None = None
) -> list[Recording]:
    """List the recordings in a folder tree, or the single file.

    If no speaker is given, the first subfolder of a recording's path is its speaker. Hidden files
    and files in `leave_out` (the output folder) are skipped.

    Raises:
        DataError: no recording was found.
    """
    if path.is_file():
        return [Recording(path.absolute(), _safe(path.stem), speaker)]
    files = [
        file
        for file in sorted(path.rglob("*"))
        if file.suffix.lower() in AUDIO
        and not file.name.startswith(".")
        and (leave_out is None or leave_out.absolute() not in file.absolute().parents)
    ]
    if not files:
        what = "contains no recording" if path.is_dir() else "does not exist"
        raise DataError(
            f"{path} {what}. Enter a recording ({', '.join(AUDIO)}) or a folder of recordings."
        )
    places = [file.relative_to(path) for file in files]
    stems = [_safe("-".join(place.with_suffix("").parts)) for place in places]
    count = Counter(stem.lower() for stem in stems)
    recordings = []
    for file, place, stem in zip(files, places, stems, strict=True):
        if count[stem.lower()] > 1:
            # A hash of the path, not a counter: a new file must not rename the other clips.
            stem += "-" + hashlib.blake2b(str(place).encode(), digest_size=4).hexdigest()
        who = speaker or (place.parts[0] if len(place.parts) > 1 else "")
        recordings.append(Recording(file.absolute(), stem, who))
    return recordings


def cut_recording(
    recording: Recording, folder: Path, cutting: SegmentationSettings
) -> Iterator[tuple[str, Span]]:
    """Write the clips of a recording as 16-bit WAV at its own rate; yield their names and spans.

    Raises:
        AudioError: the recording cannot be decoded.
    """
    facts = audio_facts(recording.path)
    spans = find_clips(measure_levels(recording.path), cutting)
    with soundfile.SoundFile(str(recording.path)) as file:
        for number, span in enumerate(spans, 1):
            first, last = (round(at_s * facts.sample_rate) for at_s in (span.start_s, span.end_s))
            wave = _read_on(file, first, last)
            name = f"{recording.stem}-{number:04d}.wav"
            write_wav(folder / name, to_mono(wave), facts.sample_rate)
            yield name, span


def _read_on(file: soundfile.SoundFile, first: int, last: int) -> np.ndarray:
    """Read samples `first` to `last`, (samples, channels), without seeking.

    Seeking in an MP3 is not sample-accurate, so the gap is decoded and discarded.

    Raises:
        AudioError: the file ends earlier or is damaged.
    """
    step = 60 * file.samplerate
    try:
        while (gap := first - file.tell()) > 0 and len(file.read(min(gap, step))):
            pass
        wave = file.read(last - first, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError):
        wave = np.zeros((0, 1), np.float32)
    if not len(wave):
        name = Path(file.name).name
        raise AudioError("truncated_audio", f"{name} cannot be decoded to the end.", CONVERT)
    return wave


def measure_levels(path: Path) -> np.ndarray:
    """Return the levels of a recording in 10 ms frames, (frames,) dB.

    Raises:
        AudioError: the recording cannot be decoded.
    """
    powers = [np.zeros(0)]
    try:
        with soundfile.SoundFile(str(path)) as file:
            size = max(1, round(file.samplerate * FRAME_S))
            for block in file.blocks(size * _BLOCK_FRAMES, dtype="float32", always_2d=True):
                # Add the powers of channels, not samples: opposite phases would cancel out.
                power = np.square(block, dtype=np.float64).sum(axis=1)  # (samples,)
                powers.append(power[: len(power) // size * size].reshape(-1, size).mean(axis=1))
    except (soundfile.LibsndfileError, RuntimeError):
        raise AudioError(
            "truncated_audio", f"{path.name} cannot be decoded to the end.", CONVERT
        ) from None
    return 10 * np.log10(np.maximum(np.nan_to_num(np.concatenate(powers)), 1e-10))


def _safe(name: str) -> str:
    """Return a file name without separators or control characters, valid everywhere."""
    kept = re.sub(r"[^\w.-]+", "_", name).strip("._-")
    return kept[:_LONGEST_NAME] or "recording"

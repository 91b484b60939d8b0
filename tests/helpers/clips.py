"""Small real audio files and lists for the tests of the data road."""

from pathlib import Path

import numpy as np
import soundfile


def make_tone(duration_s: float = 1.0, sample_rate: int = 16000, hz: float = 220.0) -> np.ndarray:
    """Return a tone, (T_wav,) float32, whose pitch makes its content unlike other tones'."""
    times = np.arange(round(duration_s * sample_rate)) / sample_rate
    return (0.3 * np.sin(2 * np.pi * hz * times)).astype(np.float32)


def write_tone(path: Path, duration_s: float = 1.0, sample_rate: int = 16000) -> Path:
    """Write a tone whose pitch follows from the file's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hz = 100.0 + sum(path.name.encode()) % 400
    subtype = "PCM_16" if path.suffix.lower() == ".wav" else None
    soundfile.write(str(path), make_tone(duration_s, sample_rate, hz), sample_rate, subtype=subtype)
    return path


def write_list(path: Path, *rows: str, encoding: str = "utf-8", end: str = "\n") -> Path:
    """Write rows as a list file in an encoding and with a line end."""
    path.write_bytes((end.join(rows) + end).encode(encoding))
    return path

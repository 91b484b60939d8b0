"""Write a WAV, to a file or standard output, that can be played while it is being written."""

import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np

from trainer.data.audio.audio_io import to_samples

_OPEN_END = 0xFFFFFFFF
"""The data length of a stream of unknown length; players then play until the stream ends."""

_HEADER_BYTES = 44  # RIFF (12), fmt (24) and the head of data (8)


def wav_header(sample_rate: int, num_bytes: int | None = None) -> bytes:
    """Return the header of a 16-bit mono WAV; `num_bytes` None means unknown length."""
    data = _OPEN_END if num_bytes is None else num_bytes
    # RIFF counts what follows its own first 8 bytes.
    whole = _OPEN_END if num_bytes is None else num_bytes + _HEADER_BYTES - 8
    # 16 bytes of format: PCM, one channel, rate, bytes per second and frame, bits.
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, sample_rate, 2 * sample_rate, 2, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", whole, b"WAVE") + form + struct.pack("<4sI", b"data", data)
    )


def write_live(out: str, waves: Iterable[tuple[np.ndarray, int]]) -> Iterator[float]:
    """Write waves (T_wav,) with their sample rate (Hz) as they arrive; yield the seconds of each.

    `out` is a path, or `-` for standard output. It is opened when the first wave arrives. The
    header of a file gets the true length at the end.

    Raises:
        AudioError: a wave has NaN or infinite samples.
    """
    coming = iter(waves)
    first = next(coming, None)
    if first is None:
        return
    sample_rate = first[1]
    with _opened(out) as file:
        num_bytes = 0
        file.write(wav_header(sample_rate))
        for wave, _ in chain([first], coming):
            samples = to_samples(wave, out).astype("<i2").tobytes()
            file.write(samples)
            # Otherwise the last samples wait in the buffer for the next wave, and a player stalls.
            file.flush()
            num_bytes += len(samples)
            yield len(wave) / sample_rate
        # A pipe cannot seek, so its header keeps the unknown length.
        if out != "-":
            file.seek(0)
            file.write(wav_header(sample_rate, num_bytes))


def _opened(out: str) -> "nullcontext[BinaryIO] | BinaryIO":
    if out == "-":
        return nullcontext(sys.stdout.buffer)
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    return Path(out).open("wb")

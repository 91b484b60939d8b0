"""Measure the audio quality of clips without a model: clipping, level, silence, noisy ends."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import soundfile

_FRAME_S = 0.02
_FULL = 0.985
"""Share of full scale from which a flat top counts as clipped.

Below 1, because a clipped recording is often resampled or encoded afterwards; chosen by hand.
"""
_SPEECH_DB = 25.0
"""Frames less than this below the loud frames count as speech; chosen by hand."""
_FLOOR_DB = -120.0  # Keeps the logarithm of digital silence finite; below the noise of 16 bits.
_WORKERS = 4  # Threads suffice, because libsndfile decodes without the GIL; chosen by hand.


@dataclass(frozen=True)
class Quality:
    """Audio quality of a clip.

    clipped_s: seconds of clipped samples. level_db: level of the loud frames (dB of full scale).
    lead_s, tail_s: seconds before and after speech. tail_db: level of the tail relative to the
    loud frames. quiet_share: share of frames without speech. ends_loud: the last frame is speech.
    """

    clipped_s: float
    level_db: float
    lead_s: float
    tail_s: float
    tail_db: float
    quiet_share: float
    ends_loud: bool


def measure_files(paths: list[str]) -> dict[str, Quality]:
    """Measure files; those that cannot be decoded are missing from the result."""
    unique = list(dict.fromkeys(path for path in paths if path))
    with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
        found = zip(unique, pool.map(_measure_file, unique), strict=True)
        return {path: quality for path, quality in found if quality is not None}


def measure_wave(wave: np.ndarray, sample_rate: int) -> Quality | None:
    """Measure a wave, (T_wav,) float32 within -1..1; return None if it is under 0.1 s."""
    size = max(1, int(sample_rate * _FRAME_S))
    count = len(wave) // size
    if count < 5:
        return None
    frames = wave[: count * size].reshape(count, size)  # (frames, samples)
    power = np.square(frames, dtype=np.float64).mean(axis=1)  # (frames,)
    levels = 10 * np.log10(np.maximum(power, 10 ** (_FLOOR_DB / 10)))
    # The 95th percentile, as a click or a cough would dominate the maximum.
    loud_db = float(np.percentile(levels, 95))
    speech = np.flatnonzero(levels > loud_db - _SPEECH_DB)
    if not len(speech):
        return None
    first, last = int(speech[0]), int(speech[-1])
    tail = power[last + 1 :]
    tail_db = 10 * np.log10(max(float(tail.mean()), 1e-12)) if len(tail) else _FLOOR_DB
    return Quality(
        clipped_s=_count_clipped(wave) / sample_rate,
        level_db=loud_db,
        lead_s=first * _FRAME_S,
        tail_s=len(tail) * _FRAME_S,
        tail_db=tail_db - loud_db,
        quiet_share=1 - len(speech) / count,
        ends_loud=bool(levels[-1] > loud_db - _SPEECH_DB / 2),
    )


def _measure_file(path: str) -> Quality | None:
    try:
        wave, sample_rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError, OSError):
        return None
    loudest = int(np.square(wave).sum(axis=0).argmax())
    return measure_wave(wave[:, loudest], sample_rate)


def _count_clipped(wave: np.ndarray) -> int:
    """Count the samples of a wave (T_wav,) in flat tops: runs of at least three at its peak."""
    peak = float(np.abs(wave).max())
    if peak < _FULL:
        return 0
    # 0.999, chosen by hand: encoding leaves the samples of a flat top slightly unequal.
    at_top = np.abs(wave) >= 0.999 * peak
    in_a_row = at_top[:-2] & at_top[1:-1] & at_top[2:]
    return int(in_a_row.sum())

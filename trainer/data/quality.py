"""Quality: what can be heard of a clip without a model: clipping, level, silence, noisy ends."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import soundfile

_FRAME_S = 0.02
_FULL = 0.985
"""From this share of full scale on, a flat top is a cut-off one."""
_SPEECH_DB = 25.0
"""How far below its loud frames speech still counts as speech."""
_FLOOR_DB = -120.0
_WORKERS = 4


@dataclass(frozen=True)
class Quality:
    """What a clip sounds like.

    clipped_s: seconds of cut-off tops. level_db: of its loud frames, against full scale. lead_s,
    tail_s: before and after speech. tail_db: the tail against the loud frames. quiet_share: frames
    without speech. ends_loud: whether the last frame is still speech.
    """

    clipped_s: float
    level_db: float
    lead_s: float
    tail_s: float
    tail_db: float
    quiet_share: float
    ends_loud: bool


def measure_files(paths: list[str]) -> dict[str, Quality]:
    """Listen to files; what cannot be decoded is left out."""
    unique = list(dict.fromkeys(path for path in paths if path))
    with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
        found = zip(unique, pool.map(_measure_file, unique), strict=True)
        return {path: quality for path, quality in found if quality is not None}


def measure_wave(wave: np.ndarray, sample_rate: int) -> Quality | None:
    """Listen to a wave, (T_wav,) float32 within -1..1; None where it is too short to tell."""
    size = max(1, int(sample_rate * _FRAME_S))
    count = len(wave) // size
    if count < 5:
        return None
    frames = wave[: count * size].reshape(count, size)  # (frames, samples)
    power = np.square(frames, dtype=np.float64).mean(axis=1)  # (frames,)
    levels = 10 * np.log10(np.maximum(power, 10 ** (_FLOOR_DB / 10)))
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
    """Count the samples (T_wav,) in flat tops: three or more in a row at the wave's own peak."""
    peak = float(np.abs(wave).max())
    if peak < _FULL:
        return 0
    at_top = np.abs(wave) >= 0.999 * peak
    in_a_row = at_top[:-2] & at_top[1:-1] & at_top[2:]
    return int(in_a_row.sum())

"""Load audio files as mono float32 waves at one sample rate, and write waves as WAV."""

import io
import math
from functools import cache
from pathlib import Path

import numpy as np
import soundfile

from trainer.core.atomic_io import write_atomic
from trainer.data.audio.headers import CONVERT, COPY_AGAIN, AudioError, AudioFacts, audio_facts

__all__ = [
    "AudioError",
    "AudioFacts",
    "audio_facts",
    "load_audio",
    "to_samples",
    "trim_silence",
    "write_wav",
]

_SILENCE_DB = -60.0  # With the factor 0.1 in `_check_samples`: -70 dB power; chosen by hand.
_LOUDEST = 8.0  # Float mixes may exceed full scale (1.0); integers stored as float are far above.
_LONGEST_S = 7200.0  # Far above any clip; a false header could otherwise ask for terabytes.


def load_audio(path: Path | str, sample_rate: int) -> np.ndarray:
    """Decode a file to one channel at `sample_rate` (Hz).

    Returns:
        wave: (T_wav,) float32, nominally within -1..1.

    Raises:
        AudioError: the file does not exist, is truncated, silent, not finite or not audio.
    """
    path = Path(path)
    facts = audio_facts(path)
    if facts.duration_s > _LONGEST_S:
        raise AudioError(
            "too_long",
            f"{path.name} is {facts.duration_s / 3600:.1f} hours long, according to its header.",
            "Split it into clips; if it is short, export it again.",
        )
    try:
        wave, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, RuntimeError):
        raise AudioError(
            "truncated_audio", f"{path.name} cannot be decoded to the end.", COPY_AGAIN
        ) from None
    found_s = len(wave) / rate
    # 50 ms or 1 %: lossy codecs add or drop a few frames at the ends.
    if found_s < facts.duration_s - max(0.05, 0.01 * facts.duration_s):
        raise AudioError(
            "truncated_audio",
            f"{path.name} is truncated: it has {found_s:.2f} of {facts.duration_s:.2f} s.",
            COPY_AGAIN,
        )
    _check_samples(wave, path)
    return resample(to_mono(wave), rate, sample_rate)


def to_mono(wave: np.ndarray) -> np.ndarray:
    """Mix channels to mono; if they cancel each other, use the loudest channel instead.

    Args:
        wave: (T_wav, channels) float32.

    Returns:
        mono: (T_wav,) float32.
    """
    if wave.shape[1] == 1:
        return wave[:, 0]
    mixed = wave.mean(axis=1, dtype=np.float32)
    powers = np.square(wave, dtype=np.float64).mean(axis=0)
    loudest = int(powers.argmax())
    # Unrelated channels lose at most 3 dB per doubling; a loss of 10 dB means opposite phase, or
    # a voice on one of many channels.
    if np.square(mixed, dtype=np.float64).mean() < 0.1 * powers[loudest]:
        return np.ascontiguousarray(wave[:, loudest])
    return mixed


def resample(wave: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Change the sample rate with a polyphase filter; deterministic.

    The Kaiser-windowed sinc has 32 zero crossings per side. Its passband is flat within 0.01 dB
    up to 0.85 of the lower Nyquist frequency, and its stopband is 95 dB down.

    Args:
        wave: (T_wav,) float32 at `rate` Hz.

    Returns:
        resampled: (ceil(T_wav * wanted / rate),) float32.
    """
    if rate == wanted:
        return np.ascontiguousarray(wave, dtype=np.float32)
    from scipy.signal import resample_poly

    divisor = math.gcd(rate, wanted)
    up, down = wanted // divisor, rate // divisor
    return resample_poly(wave, up, down, window=_low_pass(max(up, down))).astype(np.float32)


def trim_silence(
    wave: np.ndarray, sample_rate: int, *, below_db: float = 40.0, keep_s: float = 0.05
) -> np.ndarray:
    """Trim both ends where 20 ms frames are `below_db` below the loudest; keep a short margin.

    Args:
        wave: (T_wav,) float32.

    Returns:
        trimmed: (T_wav,) float32, never empty.
    """
    size = max(1, sample_rate // 50)
    count = len(wave) // size
    if count < 3:
        return wave
    frames = wave[: count * size].reshape(count, size)  # (frames, samples)
    power = np.square(frames, dtype=np.float64).mean(axis=1)  # (frames,)
    loud = np.flatnonzero(power > power.max() * 10 ** (-below_db / 10))
    if not len(loud):
        return wave
    margin = int(keep_s * sample_rate)
    start = max(0, int(loud[0]) * size - margin)
    end = min(len(wave), (int(loud[-1]) + 1) * size + margin)
    return wave[start:end]


def write_wav(path: Path | str, wave: np.ndarray, sample_rate: int) -> None:
    """Write a 16-bit WAV atomically; a wave that exceeds full scale is scaled down.

    Args:
        wave: (T_wav,) float.

    Raises:
        AudioError: the wave is not finite.
        OSError: the disk is full or refuses the file.
    """
    path = Path(path)
    samples = to_samples(wave, path.name)
    # libsndfile reports a full disk only as "System error", so let it write to memory.
    content = io.BytesIO()
    soundfile.write(content, samples, sample_rate, format="WAV", subtype="PCM_16")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, content.getvalue())


def to_samples(wave: np.ndarray, name: str) -> np.ndarray:
    """Convert a wave (T_wav,) to int16 samples (T_wav,); scale it down if it exceeds full scale.

    Raises:
        AudioError: the wave has NaN or infinite samples; `name` is used in the message.
    """
    wave = np.asarray(wave, dtype=np.float32)
    if not np.isfinite(wave).all():
        raise AudioError(
            "not_finite",
            f"The audio for {name} has NaN or infinite samples.",
            "Try another checkpoint.",
        )
    peak = float(np.abs(wave).max(initial=0.0))
    if peak > 1.0:
        wave = wave / peak
    return np.round(wave * 32767).astype(np.int16)


@cache
def _low_pass(factor: int) -> np.ndarray:
    """Return a Kaiser-windowed sinc with unit gain, (64 * factor + 1,) float32."""
    positions = np.arange(-32 * factor, 32 * factor + 1) / factor
    taps = np.sinc(0.95 * positions) * np.kaiser(len(positions), 9.0)
    return (taps / taps.sum()).astype(np.float32)


def _check_samples(wave: np.ndarray, path: Path) -> None:
    if not len(wave):
        raise AudioError("empty_audio", f"{path.name} contains no audio.", CONVERT)
    if not np.isfinite(wave).all():
        raise AudioError(
            "not_finite", f"{path.name} has NaN or infinite samples.", "Export it again."
        )
    peak = float(np.abs(wave).max())
    if peak > _LOUDEST:
        raise AudioError(
            "not_finite",
            f"{path.name} peaks at {peak:.3g}; full scale is 1.",
            "Export it as 16-bit WAV.",
        )
    # Without the DC offset, which is inaudible but would hide a silent recording.
    centred = wave - wave.mean(axis=0)
    loudest = float(np.square(centred, dtype=np.float64).mean(axis=0).max())
    if loudest < 10 ** (_SILENCE_DB / 10) * 0.1:
        raise AudioError(
            "silent_audio", f"{path.name} is silent.", "Record it again or remove the row."
        )

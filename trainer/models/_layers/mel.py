"""The log-mel spectrogram and its approximate inverse, in numpy.

The defaults follow HiFi-GAN (Kong et al. 2020), because its published vocoders expect this mel:
reflection padding of (window - hop) / 2, magnitudes, Slaney filters, natural logarithm.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np


@dataclass(frozen=True)
class MelSettings:
    """All parameters of a mel spectrogram; frequencies in Hz, sizes in samples."""

    sample_rate: int = 22050
    n_fft: int = 1024
    hop_length: int = 256
    n_mels: int = 80
    f_min: float = 0.0
    f_max: float = 8000.0
    log_floor: float = 1e-5


def frame_wave(wave: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Split audio into overlapping frames.

    wave: (T_wav,) float32. Returns a view (T_mel, n_fft); frame t is centred on sample
    (t + 0.5) * hop_length, and T_mel is T_wav // hop_length.
    """
    margin = (settings.n_fft - settings.hop_length) // 2
    # np.pad reflects any length, but a clip shorter than the margin would be repeated.
    mode = "reflect" if len(wave) > margin else "constant"
    padded = np.pad(wave, margin, mode=mode)
    windows = np.lib.stride_tricks.sliding_window_view(padded, settings.n_fft)
    return windows[:: settings.hop_length][: len(wave) // settings.hop_length]


def magnitudes(wave: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Return the magnitude spectrogram (T_mel, n_fft // 2 + 1) of audio (T_wav,)."""
    spectrum = np.fft.rfft(frame_wave(wave, settings) * hann_window(settings.n_fft))
    # HiFi-GAN's front end adds 1e-9 under the root, so we have to add it too.
    return np.sqrt(spectrum.real**2 + spectrum.imag**2 + 1e-9).astype(np.float32)


def log_mel(magnitude: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Turn magnitudes (T_mel, n_fft // 2 + 1) into the log-mel spectrogram (T_mel, M) float32."""
    mel = magnitude @ mel_filters(settings).T
    return np.log(np.maximum(mel, settings.log_floor)).astype(np.float32)


def invert_mel(mel: np.ndarray, settings: MelSettings, rounds: int = 40) -> np.ndarray:
    """Estimate non-negative magnitudes (T_mel, n_fft // 2 + 1) whose log-mel is `mel` (T_mel, M).

    Multiplicative updates (Lee & Seung 2001, equation 4) keep the result non-negative. They start
    from the transposed filters.
    """
    # The small constants below only keep divisions away from 0 in bins that no filter covers.
    filters = mel_filters(settings)
    target = np.exp(mel.astype(np.float32))
    spread = filters / np.maximum(filters.sum(axis=1, keepdims=True), 1e-8)
    magnitude = target @ spread + 1e-8
    wanted = target @ filters
    for _ in range(rounds):
        magnitude *= wanted / np.maximum(magnitude @ filters.T @ filters, 1e-10)
    return magnitude


@cache
def hann_window(size: int) -> np.ndarray:
    """Return the periodic Hann window (size,) float32."""
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)


@cache
def mel_filters(settings: MelSettings) -> np.ndarray:
    """Return triangular filters (M, n_fft // 2 + 1) of equal area on Slaney's mel scale."""
    edges = _mel_to_hz(
        np.linspace(_hz_to_mel(settings.f_min), _hz_to_mel(settings.f_max), settings.n_mels + 2)
    )
    bins = np.linspace(0, settings.sample_rate / 2, settings.n_fft // 2 + 1)
    low, centre, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising, falling = (bins - low) / (centre - low), (high - bins) / (high - centre)
    filters = np.maximum(0, np.minimum(rising, falling)) * 2 / (high - low)
    return filters.astype(np.float32)


# Slaney's scale is linear up to 1000 Hz (15 mels), then has 27 mels for each factor of 6.4.
_LINEAR_HZ = 200 / 3
_LOG_STEP = np.log(6.4) / 27


def _hz_to_mel(hz: float) -> float:
    return hz / _LINEAR_HZ if hz < 1000 else 15 + float(np.log(hz / 1000)) / _LOG_STEP


def _mel_to_hz(mel: np.ndarray) -> np.ndarray:
    return np.where(mel < 15, mel * _LINEAR_HZ, 1000 * np.exp((mel - 15) * _LOG_STEP))

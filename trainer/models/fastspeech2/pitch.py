"""Fundamental frequency by autocorrelation, with the smoothest path through the candidates.

Follows Boersma 1993, "Accurate short-term analysis of the fundamental frequency": the frame's
autocorrelation divided by the window's, peaks as candidates, one unvoiced candidate, and dynamic
programming that makes octave jumps and changes of voicing costly.
"""

import numpy as np

from trainer.models._layers.mel import MelSettings, frame_wave, hann_window

PITCH_MIN_HZ = 65.0
PITCH_MAX_HZ = 500.0
_CANDIDATES = 6
_LOW_PASS_HZ = 1200.0
_VOICING_THRESHOLD = 0.45
_SILENCE_THRESHOLD = 0.03
_OCTAVE_COST = 0.02
_OCTAVE_JUMP_COST = 0.35
_VOICING_CHANGE_COST = 0.14


def track_pitch(wave: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Return the fundamental frequency (T_mel,) float32 in Hz of audio (T_wav,), 0 if unvoiced."""
    frames = frame_wave(wave, settings)
    if len(frames) == 0:
        return np.zeros(0, np.float32)
    correlation = _normalised_autocorrelation(frames, settings)
    lags, strengths = _find_candidates(correlation, settings)
    unvoiced = _unvoiced_strength(frames)
    # The costs are stated for frames of 10 ms.
    scale = 0.01 * settings.sample_rate / settings.hop_length
    choice = _best_path(lags, strengths, unvoiced, scale)
    voiced = choice < lags.shape[1]
    chosen = lags[np.arange(len(lags)), np.minimum(choice, lags.shape[1] - 1)]
    return np.where(voiced, settings.sample_rate / chosen, 0).astype(np.float32)


def _normalised_autocorrelation(frames: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Return (T_mel, longest lag + 2) float32 of frames (T_mel, n_fft); 1 at lag 0."""
    longest = int(settings.sample_rate / PITCH_MIN_HZ) + 2
    window = hann_window(settings.n_fft)
    size = 2 * settings.n_fft
    centred = (frames - frames.mean(axis=1, keepdims=True)) * window
    power = np.abs(np.fft.rfft(centred.astype(np.float32), size)) ** 2
    # High frequencies make peaks narrower than a sample, and breath there hides the voice.
    frequencies = np.fft.rfftfreq(size, 1 / settings.sample_rate)
    power *= np.exp(-0.5 * (frequencies / _LOW_PASS_HZ) ** 2).astype(np.float32)
    correlation = np.fft.irfft(power, size)[:, :longest]
    of_window = np.fft.irfft(np.abs(np.fft.rfft(window, size)) ** 2, size)[:longest]
    scale = np.maximum(correlation[:, :1], 1e-9) * (of_window / of_window[0])
    return (correlation / scale).astype(np.float32)


def _find_candidates(
    correlation: np.ndarray, settings: MelSettings
) -> tuple[np.ndarray, np.ndarray]:
    """Return lags in samples and strengths, both (T_mel, candidates), of the highest peaks."""
    first = max(2, int(settings.sample_rate / PITCH_MAX_HZ))
    width = correlation.shape[1] - first - 1
    before, here, after = (correlation[:, first + shift :][:, :width] for shift in (-1, 0, 1))
    bend = np.minimum(before + after - 2 * here, -1e-9)
    offset = np.clip(0.5 * (before - after) / bend, -1, 1)
    height = np.minimum(here - 0.25 * (before - after) * offset, 1.0)
    lags = np.arange(first, first + width) + offset
    # Shorter lags win ties, or every multiple of the period would look as good.
    strength = height - _OCTAVE_COST * np.log2(lags / first)
    is_peak = (here > before) & (here >= after) & (here > 0.2)
    strength = np.where(is_peak, strength, -1e3)
    best = np.argpartition(-strength, _CANDIDATES, axis=1)[:, :_CANDIDATES]
    return np.take_along_axis(lags, best, 1), np.take_along_axis(strength, best, 1)


def _unvoiced_strength(frames: np.ndarray) -> np.ndarray:
    """Return how well "unvoiced" explains each frame (T_mel, n_fft); quiet frames more so."""
    peak = np.abs(frames - frames.mean(axis=1, keepdims=True)).max(axis=1)
    loudness = peak / max(float(np.percentile(peak, 99)), 1e-6)
    quiet = 2 - loudness / (_SILENCE_THRESHOLD / (1 + _VOICING_THRESHOLD))
    return _VOICING_THRESHOLD + np.maximum(0, quiet)


def _best_path(
    lags: np.ndarray, strengths: np.ndarray, unvoiced: np.ndarray, scale: float
) -> np.ndarray:
    """Return the chosen candidate (T_mel,) of each frame; the number of candidates is unvoiced.

    lags, strengths: (T_mel, candidates). unvoiced: (T_mel,).
    """
    count = lags.shape[1]
    octaves = np.log2(lags)
    local = np.concatenate([strengths, unvoiced[:, None]], axis=1)
    jumps = np.zeros((len(lags), count + 1, count + 1))
    jumps[1:, :count, :count] = _OCTAVE_JUMP_COST * np.abs(
        octaves[1:, None, :] - octaves[:-1, :, None]
    )
    jumps[1:, count, :count] = jumps[1:, :count, count] = _VOICING_CHANGE_COST
    jumps *= scale
    score, origin = local[0], np.zeros((len(lags), count + 1), np.int64)
    for frame in range(1, len(lags)):
        arriving = score[:, None] - jumps[frame]
        origin[frame] = arriving.argmax(axis=0)
        score = arriving.max(axis=0) + local[frame]
    path = np.zeros(len(lags), np.int64)
    path[-1] = int(score.argmax())
    for frame in range(len(lags) - 1, 0, -1):
        path[frame - 1] = origin[frame, path[frame]]
    return path

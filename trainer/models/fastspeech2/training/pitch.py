"""Track the fundamental frequency by autocorrelation and dynamic programming.

This follows Boersma 1993, "Accurate short-term analysis of the fundamental frequency": each frame's
autocorrelation is divided by that of the window, its peaks and one unvoiced candidate compete, and
octave jumps and voicing changes have a cost.
"""

import numpy as np

from trainer.models._layers.mel import MelSettings, frame_wave, hann_window

# Chosen by hand: low male to high female and child voices.
PITCH_MIN_HZ = 65.0
PITCH_MAX_HZ = 500.0
_CANDIDATES = 6  # Praat's default is 15; fewer are faster
_LOW_PASS_HZ = 1200.0  # chosen by hand: keeps the strongest harmonics of every voice
# The defaults of Praat, except for the octave cost: it is 0.01 there, 0.02 was chosen by hand.
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
    # Praat defines the costs of changes for frames of 10 ms.
    scale = 0.01 * settings.sample_rate / settings.hop_length
    choice = _best_path(lags, strengths, unvoiced, scale)
    voiced = choice < lags.shape[1]
    chosen = lags[np.arange(len(lags)), np.minimum(choice, lags.shape[1] - 1)]
    return np.where(voiced, settings.sample_rate / chosen, 0).astype(np.float32)


def _normalised_autocorrelation(frames: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Return autocorrelations (T_mel, longest lag + 2) of frames (T_mel, n_fft); 1 at lag 0."""
    longest = int(settings.sample_rate / PITCH_MIN_HZ) + 2
    window = hann_window(settings.n_fft)
    size = 2 * settings.n_fft  # zero padding, or the correlation would wrap around
    centred = (frames - frames.mean(axis=1, keepdims=True)) * window
    power = np.abs(np.fft.rfft(centred.astype(np.float32), size)) ** 2
    # High frequencies make peaks too narrow to interpolate, and breath noise hides the voice.
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
    # A parabola through three points gives the peak's place and height between the samples.
    bend = np.minimum(before + after - 2 * here, -1e-9)
    offset = np.clip(0.5 * (before - after) / bend, -1, 1)
    height = np.minimum(here - 0.25 * (before - after) * offset, 1.0)
    lags = np.arange(first, first + width) + offset
    # Shorter lags win ties, because every multiple of the period correlates just as well.
    strength = height - _OCTAVE_COST * np.log2(lags / first)
    # Weaker peaks are noise; 0.2 was chosen by hand, below the voicing threshold.
    is_peak = (here > before) & (here >= after) & (here > 0.2)
    strength = np.where(is_peak, strength, -1e3)
    best = np.argpartition(-strength, _CANDIDATES, axis=1)[:, :_CANDIDATES]
    return np.take_along_axis(lags, best, 1), np.take_along_axis(strength, best, 1)


def _unvoiced_strength(frames: np.ndarray) -> np.ndarray:
    """Return the strength of the unvoiced candidate (T_mel,) of frames (T_mel, n_fft).

    It is higher in quiet frames, as in Boersma 1993.
    """
    peak = np.abs(frames - frames.mean(axis=1, keepdims=True)).max(axis=1)
    loudness = peak / max(float(np.percentile(peak, 99)), 1e-6)
    quiet = 2 - loudness / (_SILENCE_THRESHOLD / (1 + _VOICING_THRESHOLD))
    return _VOICING_THRESHOLD + np.maximum(0, quiet)


def _best_path(
    lags: np.ndarray, strengths: np.ndarray, unvoiced: np.ndarray, scale: float
) -> np.ndarray:
    """Return the chosen candidate (T_mel,) of each frame; unvoiced is the last one plus 1.

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

"""Vocoders that need no weights: Griffin-Lim, and pulses and noise shaped to the mel."""

import numpy as np

from trainer.models._layers.mel import (
    MelSettings,
    hann_window,
    invert_mel,
    log_mel,
    mel_filters,
)

# All chosen by hand.
_SEED = 20
_BREATH_HZ = 4500.0  # above this, voiced speech is made of noise too
_SHAPING_ROUNDS = 3
_PULSE_REACH = 12  # samples on each side of a pulse
_LOUDEST = 0.95


def griffin_lim(
    mel: np.ndarray, settings: MelSettings, rounds: int = 32, momentum: float = 0.99
) -> np.ndarray:
    """Estimate audio (T_wav,) whose mel is close to `mel` (T_mel, M), from random initial phases.

    Griffin & Lim 1984, with the momentum of Perraudin et al. 2013. In an experiment, a recognizer
    made no fewer errors after 60 rounds than after 32.
    """
    generator = np.random.default_rng(_SEED)
    target = invert_mel(mel, settings)
    angles = np.exp(2j * np.pi * generator.random(target.shape)).astype(np.complex64)
    return _limit(_iterate_phases(target, angles, settings, rounds, momentum))


def pulse_noise(mel: np.ndarray, f0: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Shape pulses (voiced) and noise (unvoiced) to a mel.

    mel: (T_mel, M) natural log. f0: (T_mel,) Hz, 0 where unvoiced. Each round measures the mel of
    the current audio and corrects its envelope; the fine structure remains that of the excitation.
    A predicted mel has lost its harmonics, so following it more closely makes the voice hoarse.
    Returns audio (T_wav,) float32.
    """
    wave = _excite(f0, settings)
    wanted = _smooth_bands(mel)
    for _ in range(_SHAPING_ROUNDS):
        spectrum = stft(wave, settings)
        correction = wanted - _smooth_bands(log_mel(np.abs(spectrum), settings))
        wave = istft(spectrum * np.exp(_spread_bands(correction, settings)), settings)
    return _limit(wave)


def _smooth_bands(mel: np.ndarray) -> np.ndarray:
    """Average the magnitudes of a mel (T_mel, M) over five bands, in natural log.

    Without smoothing, single harmonics would resonate.
    """
    padded = np.pad(np.exp(mel), ((0, 0), (2, 2)), mode="edge")
    # A triangle with sum 1; 1e-8 below keeps the logarithm of silence finite.
    weights = np.array([0.25, 0.75, 1.0, 0.75, 0.25], np.float32) / 3
    bands = mel.shape[1]
    return np.log(sum(w * padded[:, k : k + bands] for k, w in enumerate(weights)) + 1e-8)


def _spread_bands(correction: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Interpolate log gains of mel bands (T_mel, M) to those of bins (T_mel, n_fft // 2 + 1)."""
    filters = mel_filters(settings)
    centres = filters.argmax(axis=1)
    bins = np.arange(filters.shape[1])
    upper = np.clip(np.searchsorted(centres, bins), 1, len(centres) - 1)
    lower = upper - 1
    width = np.maximum(centres[upper] - centres[lower], 1)
    share = np.clip((bins - centres[lower]) / width, 0, 1).astype(np.float32)
    return correction[:, lower] * (1 - share) + correction[:, upper] * share


def stft(wave: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Return the complex spectrum (T_mel, n_fft // 2 + 1) of audio (T_mel * hop_length,)."""
    margin = (settings.n_fft - settings.hop_length) // 2
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(wave, margin), settings.n_fft)
    frames = windows[:: settings.hop_length] * hann_window(settings.n_fft)
    return np.fft.rfft(frames.astype(np.float32)).astype(np.complex64)


def istft(spectrum: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Invert `stft`: (T_mel, n_fft // 2 + 1) complex to audio (T_mel * hop_length,) float32."""
    window = hann_window(settings.n_fft)
    frames = np.fft.irfft(spectrum, settings.n_fft).astype(np.float32) * window
    total = _overlap_add(frames, settings.hop_length)
    weight = _overlap_add(np.broadcast_to(window**2, frames.shape), settings.hop_length)
    margin = (settings.n_fft - settings.hop_length) // 2
    kept = slice(margin, margin + len(frames) * settings.hop_length)
    # The sum of squared windows approaches 0 at both ends of the clip.
    return total[kept] / np.maximum(weight[kept], 1e-3)


def _overlap_add(frames: np.ndarray, hop_length: int) -> np.ndarray:
    """Overlap-add frames (T_mel, n_fft) at a distance of hop_length, which must divide n_fft."""
    count, size = frames.shape
    parts = size // hop_length
    total = np.zeros((count + parts - 1, hop_length), np.float32)
    for part in range(parts):
        total[part : part + count] += frames[:, part * hop_length : (part + 1) * hop_length]
    return total.reshape(-1)


def _iterate_phases(
    target: np.ndarray, angles: np.ndarray, settings: MelSettings, rounds: int, momentum: float
) -> np.ndarray:
    """Make phases consistent with the magnitudes `target` (T_mel, bins); return audio (T_wav,)."""
    previous = np.zeros_like(angles)
    for _ in range(rounds):
        rebuilt = stft(istft(target * angles, settings), settings)
        step = rebuilt - np.complex64(momentum / (1 + momentum)) * previous
        angles = step / np.maximum(np.abs(step), 1e-12)
        previous = rebuilt
    return istft(target * angles, settings)


def _excite(f0: np.ndarray, settings: MelSettings) -> np.ndarray:
    """Return pulses at f0 (T_mel,), breathy above _BREATH_HZ, noise where unvoiced: (T_wav,)."""
    generator = np.random.default_rng(_SEED)
    hop, rate = settings.hop_length, settings.sample_rate
    count = len(f0) * hop
    voiced = f0 > 0
    if not voiced.any():
        return generator.standard_normal(count).astype(np.float32)
    centres = (np.arange(len(f0)) + 0.5) * hop
    smooth_f0 = np.interp(np.arange(count), centres[voiced], f0[voiced])
    pulses = _place_pulses(smooth_f0 / rate)
    noise = generator.standard_normal(count).astype(np.float32)
    frequencies = np.linspace(0, rate / 2, settings.n_fft // 2 + 1)
    # A soft transition from pulses to noise, 400 Hz wide.
    breath = 1 / (1 + np.exp(-(frequencies - _BREATH_HZ) / 400))
    share = np.where(voiced[:, None], breath, 1.0).astype(np.float32)
    # Square roots, because it is the powers of pulses and noise that add up.
    pulse_part = stft(pulses, settings) * np.sqrt(1 - share)
    return istft(pulse_part + stft(noise, settings) * np.sqrt(share), settings)


def _place_pulses(advance: np.ndarray) -> np.ndarray:
    """Return one pulse of unit power per period, (T_wav,) float32; advance: periods per sample.

    A pulse between two samples is a windowed sinc. If pulses were rounded to samples, a period of
    a whole number of samples and a half would sound an octave lower.
    """
    turns = np.cumsum(advance)
    after = np.flatnonzero(np.diff(np.floor(turns), prepend=0.0) > 0)
    late = (turns[after] - np.floor(turns[after])) / advance[after]
    taps = np.arange(-_PULSE_REACH, _PULSE_REACH + 1)
    offsets = taps + late[:, None]
    shapes = np.sinc(offsets) * np.cos(np.pi / 2 * offsets / (_PULSE_REACH + 1)) ** 2
    pulses = np.zeros(len(advance) + 2 * _PULSE_REACH, np.float32)
    places = after[:, None] + taps + _PULSE_REACH
    np.add.at(pulses, places, shapes / np.sqrt(advance[after])[:, None])
    return pulses[_PULSE_REACH:-_PULSE_REACH]


def _limit(wave: np.ndarray) -> np.ndarray:
    """Scale down audio (T_wav,) that would clip."""
    peak = float(np.abs(wave).max()) if len(wave) else 0.0
    return (wave * min(1.0, _LOUDEST / max(peak, 1e-9))).astype(np.float32)

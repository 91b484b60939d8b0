"""The filterbank of w2v-bert-2.0 (Seamless Communication 2023, arXiv 2312.05187), in numpy.

It has 80 Kaldi mels every 10 ms, each normalized over the clip, and stacks two frames. If the
number of frames is odd, the last one is dropped; upstream pads it to one more code.
"""

from functools import cache

import numpy as np

SAMPLE_RATE = 16000
"""Hz."""

WIDTH = 160

# The constants of Kaldi and of transformers' SeamlessM4TFeatureExtractor.
_FRAME, _HOP, _FFT, _NUM_MELS = 400, 160, 512, 80
_FLOOR = 1.192092955078125e-07  # float32's epsilon
_LOWEST_HZ = 20.0


def filterbank(wave: np.ndarray) -> np.ndarray:
    """Turn audio (T_wav,) float32 at 16 kHz into features (T, 160) float32, 50 per second.

    The result is empty for audio shorter than 0.035 s.
    """
    if len(wave) < _FRAME + _HOP:
        return np.zeros((0, WIDTH), np.float32)
    # Kaldi expects the range of 16-bit integers.
    scaled = wave.astype(np.float64) * 2**15
    frames = np.lib.stride_tricks.sliding_window_view(scaled, _FRAME)[::_HOP]
    frames = frames - frames.mean(axis=1, keepdims=True)
    emphasised = frames.copy()
    emphasised[:, 1:] -= 0.97 * frames[:, :-1]
    # Kaldi's pre-emphasis; the first sample of a frame is its own predecessor.
    emphasised[:, 0] *= 1 - 0.97
    spectrum = np.fft.rfft(emphasised * _window(), _FFT).astype(np.complex64)
    power = np.abs(spectrum).astype(np.float64) ** 2
    mels = np.log(np.maximum(power @ _filters(), _FLOOR)).astype(np.float32)  # (T, 80)
    spread = np.sqrt(mels.var(axis=0, ddof=1) + 1e-7)
    normed = ((mels - mels.mean(axis=0)) / spread).astype(np.float32)
    return normed[: len(normed) // 2 * 2].reshape(-1, WIDTH)


@cache
def _window() -> np.ndarray:
    """Return Povey's window (400,): a symmetric Hann window to the power of 0.85."""
    return np.hanning(_FRAME) ** 0.85


@cache
def _filters() -> np.ndarray:
    """Return filters (257, 80) that are triangular on Kaldi's mel scale, not in Hz."""
    bins = _to_mel(np.linspace(0, SAMPLE_RATE / 2, _FFT // 2 + 1))
    edges = np.linspace(_to_mel(_LOWEST_HZ), _to_mel(SAMPLE_RATE / 2), _NUM_MELS + 2)
    low, centre, high = edges[:-2], edges[1:-1], edges[2:]
    rising = (bins[:, None] - low) / (centre - low)
    falling = (high - bins[:, None]) / (high - centre)
    return np.maximum(0.0, np.minimum(rising, falling))


def _to_mel(hz: np.ndarray | float) -> np.ndarray:
    return np.asarray(1127.0 * np.log(1.0 + np.asarray(hz) / 700.0))

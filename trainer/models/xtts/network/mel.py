"""The two mel front ends of XTTS v2: one for the DVAE, one for the GPT's reference audio.

Both use power spectra of a 1024-sample Hann window, triangular filters of equal area on the HTK
scale, and natural logarithms divided by one value per band. They differ only in the FFT size.
"""

from functools import cache

import torch
from torch import Tensor

from trainer.core.errors import DataError
from trainer.models.xtts.network.sizes import HOP_LENGTH, SAMPLE_RATE

# All as in coqui-tts; the networks were trained on these mels.
_WINDOW = 1024
_F_MAX = 8000.0
_FLOOR = 1e-5
_DVAE_FFT = 1024
_CONDITIONING_FFT = 2048


def dvae_mel(wave: Tensor, mel_stats: Tensor) -> Tensor:
    """Return the DVAE's mel (B, M, T_mel) of audio (B, T_wav) at 22,050 Hz.

    mel_stats: (M,). T_mel is T_wav // 256 + 1.

    Raises:
        DataError: the audio is shorter than half a window.
    """
    return _log_mel(wave, mel_stats, _DVAE_FFT)


def conditioning_mel(wave: Tensor, mel_stats: Tensor) -> Tensor:
    """Return the conditioning encoder's mel (B, M, T_mel) of audio (B, T_wav) at 22,050 Hz.

    mel_stats: (M,).

    Raises:
        DataError: the audio is shorter than half an FFT.
    """
    return _log_mel(wave, mel_stats, _CONDITIONING_FFT)


def _log_mel(wave: Tensor, mel_stats: Tensor, n_fft: int) -> Tensor:
    """wave: (B, T_wav). mel_stats: (M,). Returns (B, M, T_mel) in float32."""
    if wave.shape[-1] <= n_fft // 2:
        raise DataError(
            f"A clip of {wave.shape[-1]} samples is too short for a mel spectrogram; expected more "
            f"than {n_fft // 2} samples at {SAMPLE_RATE} Hz. Use longer audio."
        )
    window = _hann_window().to(wave.device)
    spectrum = torch.stft(
        wave.float(), n_fft, HOP_LENGTH, _WINDOW, window, center=True, return_complex=True
    )
    power = spectrum.real.square() + spectrum.imag.square()  # (B, n_fft // 2 + 1, T_mel)
    filters = _mel_filters(n_fft, len(mel_stats)).to(wave.device)
    mel = (filters @ power).clamp_(min=_FLOOR).log_()
    return mel / mel_stats.to(wave.device, torch.float32)[:, None]


@cache
def _hann_window() -> Tensor:
    """Return the periodic window (n_fft,)."""
    # The result is cached, and a tensor made in inference mode could not be used in training.
    with torch.inference_mode(False):
        return torch.hann_window(_WINDOW)


@cache
def _mel_filters(n_fft: int, n_mels: int) -> Tensor:
    """Return filters (M, n_fft // 2 + 1): HTK's scale, but Slaney's area normalization."""
    # Imported here because the import takes a second, and only audio needs it.
    from torchaudio.functional import melscale_fbanks

    with torch.inference_mode(False):
        filters = melscale_fbanks(
            n_fft // 2 + 1, 0.0, _F_MAX, n_mels, SAMPLE_RATE, norm="slaney", mel_scale="htk"
        )
        return filters.t().contiguous()

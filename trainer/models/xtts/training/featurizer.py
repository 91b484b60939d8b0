"""Compute the DVAE codes and the conditioning mel of one clip, independently of other clips."""

import hashlib
from functools import lru_cache

import numpy as np
import torch

from trainer.core.errors import DataError
from trainer.core.types import Clip, Features
from trainer.data.audio.audio_io import load_audio
from trainer.data.features.cache import content_hash
from trainer.models.xtts.checkpoint.base_folder import Base
from trainer.models.xtts.network.dvae import DvaeEncoder, load_dvae
from trainer.models.xtts.network.mel import conditioning_mel, dvae_mel
from trainer.models.xtts.network.sizes import CODE_STRIDE, SAMPLE_RATE

_VERSION = 2
"""Increase when the features or the survey change, so that cached features are recomputed."""

_SHORTEST_S = 0.5  # as in coqui-tts


class XttsFeaturizer:
    """Clip -> codes (n,) int16, one per 1024 samples; reference (M, T_mel) float16.

    The reference is the conditioning encoder's mel of the whole clip; training cuts segments from
    it.
    """

    def __init__(self, base: Base) -> None:
        self.base = base
        parts = f"{_VERSION}/{content_hash(base.dvae_path)}/{base.mel_stats_hash()}"
        self.fingerprint = hashlib.sha256(parts.encode()).hexdigest()[:16]

    @torch.inference_mode()
    def __call__(self, clip: Clip) -> Features:
        """Compute the features of one clip.

        Raises:
            DataError: the audio is shorter than half a second.
        """
        wave = load_audio(clip.audio_path, SAMPLE_RATE)
        if len(wave) < _SHORTEST_S * SAMPLE_RATE:
            raise DataError(
                f"{clip.audio_path} lasts {len(wave) / SAMPLE_RATE:.2f} s; XTTS needs at least "
                f"{_SHORTEST_S} s. Merge it with the next clip or remove the row."
            )
        dvae, mel_stats = _networks(self.base)
        audio = torch.from_numpy(wave)[None]
        codes = dvae.encode(dvae_mel(audio, mel_stats))[0]
        # The mel has a frame more than the audio has hops, which may give one code too many.
        num_codes = -(-len(wave) // CODE_STRIDE)
        reference = conditioning_mel(audio, mel_stats)[0]
        return {
            "codes": codes[:num_codes].numpy().astype(np.int16),
            "reference": reference.numpy().astype(np.float16),
        }


@lru_cache(maxsize=2)
def _networks(base: Base) -> tuple[DvaeEncoder, torch.Tensor]:
    """Return the DVAE and the mel statistics (M,), loaded once per process."""
    return load_dvae(base.dvae_state(), base.sizes.dvae), base.mel_stats()

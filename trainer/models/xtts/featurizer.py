"""One clip to DVAE codes and the conditioning mel; no clip depends on another."""

import hashlib
from functools import lru_cache

import numpy as np
import torch

from trainer.data.audio import load_audio
from trainer.data.cache import content_hash
from trainer.data.types import Clip, Features
from trainer.errors import DataError
from trainer.models.xtts.dvae import DvaeEncoder, load_dvae
from trainer.models.xtts.folder import Base
from trainer.models.xtts.mels import conditioning_mel, dvae_mel
from trainer.models.xtts.sizes import CODE_STRIDE, SAMPLE_RATE

_VERSION = 2
"""Counts changes of the features and of the survey: caches depend on it."""

_SHORTEST_S = 0.5


class XttsFeaturizer:
    """Clip -> codes (n,) int16, one for 1024 samples; reference (M, T_mel) float16.

    The reference is the mel of the whole clip as the conditioning encoder reads it, from which
    training cuts its segments.
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
                f"{_SHORTEST_S} s. Join it with a neighbour or remove the row."
            )
        dvae, mel_stats = _networks(self.base)
        audio = torch.from_numpy(wave)[None]
        codes = dvae.encode(dvae_mel(audio, mel_stats))[0]
        num_codes = -(-len(wave) // CODE_STRIDE)
        reference = conditioning_mel(audio, mel_stats)[0]
        return {
            "codes": codes[:num_codes].numpy().astype(np.int16),
            "reference": reference.numpy().astype(np.float16),
        }


@lru_cache(maxsize=2)
def _networks(base: Base) -> tuple[DvaeEncoder, torch.Tensor]:
    """Return the DVAE and the mel statistics (M,), loaded once a process."""
    return load_dvae(base.dvae_state(), base.sizes.dvae), base.mel_stats()

"""Collate clips to padded tensors, and count the frames and tokens of a clip."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.core.types import Features
from trainer.models.fastspeech2.network import length_mask


def counts(features: Features) -> dict[str, float]:
    """Return the number of frames and tokens of a clip."""
    return {"frames": float(len(features["mel"])), "tokens": float(len(features["tokens"]))}


def collate(clips: Sequence[Features]) -> dict[str, Tensor]:
    """Pad clips to a common length and stack them.

    Returns tokens, durations (B, T_text) int64; pitch, energy (B, T_text); token_mask (B, T_text)
    bool; mel (B, T_mel, M); mel_mask (B, T_mel) bool; speaker (B,) int64.
    """
    num_tokens = torch.tensor([len(clip["tokens"]) for clip in clips])
    num_frames = torch.tensor([len(clip["mel"]) for clip in clips])
    return {
        # Padding tokens with 0 is safe: symbol 0 is <pad>, whose embedding stays zero.
        "tokens": _pad([clip["tokens"] for clip in clips], np.int64),
        "token_mask": length_mask(num_tokens),
        # Padded tokens last 0 frames, so they do not lengthen the mel.
        "durations": _pad([clip["durations"] for clip in clips], np.int64),
        "pitch": _pad([clip["pitch"] for clip in clips], np.float32),
        "energy": _pad([clip["energy"] for clip in clips], np.float32),
        "mel": _pad([clip["mel"] for clip in clips], np.float32),
        "mel_mask": length_mask(num_frames),
        "speaker": torch.tensor([int(clip["speaker"]) for clip in clips]),
    }


def _pad(arrays: Sequence[np.ndarray], dtype: type) -> Tensor:
    """Stack arrays (T, ...) of different lengths as (B, longest T, ...), 0 where padded."""
    longest = max(len(array) for array in arrays)
    padded = np.zeros((len(arrays), longest, *arrays[0].shape[1:]), dtype)
    for row, array in enumerate(arrays):
        padded[row, : len(array)] = array
    return torch.from_numpy(padded)

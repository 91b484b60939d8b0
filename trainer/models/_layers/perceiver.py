"""The perceiver resampler (Jaegle et al. 2021, arXiv 2103.03206): frames to a few latents.

XTTS and IndexTTS-2 use it without pre-norm; only its output is normalized.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models._layers.attention import SelfAttention

HEAD_WIDTH = 64
"""Fixed, whatever the model's width, so that the number of heads follows from the shapes."""

_INIT_STD = 0.02  # as in coqui-tts and index-tts


class Perceiver(nn.Module):
    """Compress any number of frames to a fixed number of latents.

    `inner` is the hidden width of the feed-forward layers. `context` is the width of the frames if
    it differs from that of the latents; a linear layer then projects them.
    """

    def __init__(
        self,
        width: int,
        *,
        num_latents: int,
        layers: int,
        heads: int,
        inner: int,
        context: int | None = None,
    ) -> None:
        super().__init__()
        self.proj_context = nn.Identity() if context is None else nn.Linear(context, width)
        self.latents = nn.Parameter(torch.empty(num_latents, width).normal_(0.0, _INIT_STD))
        self.layers = nn.ModuleList(
            nn.ModuleList(
                [
                    _PerceiverAttention(width, heads),
                    # Twice the inner width, because the gate halves it again.
                    nn.Sequential(
                        nn.Linear(width, 2 * inner), _GatedGelu(), nn.Linear(inner, width)
                    ),
                ]
            )
            for _ in range(layers)
        )
        self.norm = _RmsNorm(width)

    def forward(self, frames: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compress frames to latents.

        frames: (B, T_mel, D), or (B, T_mel, context). mask: bool (B, T_mel), True where valid; None
        means that all frames are valid. Returns (B, num_latents, D).
        """
        frames = self.proj_context(frames)
        latents = self.latents.expand(len(frames), -1, -1)
        seen = None
        if mask is not None:
            # The keys are latents followed by frames, and the latents are always visible.
            seen = F.pad(mask, (latents.shape[1], 0), value=True)[:, None, None]
        for attend, feed_forward in self.layers:  # type: ignore[misc]
            latents = latents + attend(latents, frames, seen)
            latents = latents + feed_forward(latents)
        return self.norm(latents)


class _PerceiverAttention(SelfAttention):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__(heads)
        inner = heads * HEAD_WIDTH
        self.to_q = nn.Linear(width, inner, bias=False)
        self.to_kv = nn.Linear(width, 2 * inner, bias=False)
        self.to_out = nn.Linear(inner, width, bias=False)

    def forward(self, latents: Tensor, frames: Tensor, mask: Tensor | None) -> Tensor:
        """latents: (B, K, D) attend to themselves and frames: (B, T_mel, D). Returns (B, K, D)."""
        query = self.split_heads(self.to_q(latents))  # (B, heads, K, 64)
        key, value = self.to_kv(torch.cat([latents, frames], dim=1)).chunk(2, dim=-1)
        key, value = self.split_heads(key), self.split_heads(value)
        return self.to_out(self.attend(query, key, value, mask))


class _GatedGelu(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        """Gate the first half by the second. values: (B, T, D). Returns (B, T, D / 2)."""
        kept, gate = values.chunk(2, dim=-1)
        return kept * F.gelu(gate)


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        """values: (B, T, D). Returns (B, T, D)."""
        # A vector of unit length times sqrt(D) has a root mean square of 1.
        return F.normalize(values, dim=-1) * (math.sqrt(values.shape[-1]) * self.gamma)

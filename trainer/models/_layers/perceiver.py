"""The perceiver resampler (Jaegle et al. 2021, arXiv 2103.03206): frames to a few latents."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models._layers.attention import SelfAttention

HEAD_WIDTH = 64
"""The same whatever the width of the model, so that shapes tell the number of heads."""

_INIT_STD = 0.02


class Perceiver(nn.Module):
    """Any number of frames to a fixed number of latents.

    `inner` is the width between the layers of its feed-forward parts; `context`, if given, that of
    frames which a layer of its own brings to the width of the latents.
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
                    nn.Sequential(
                        nn.Linear(width, 2 * inner), _GatedGelu(), nn.Linear(inner, width)
                    ),
                ]
            )
            for _ in range(layers)
        )
        self.norm = _RmsNorm(width)

    def forward(self, frames: Tensor, mask: Tensor | None = None) -> Tensor:
        """Condense frames.

        frames: (B, T_mel, D), or of the context's width. mask: bool (B, T_mel), True where valid;
        None: everywhere. Returns (B, num_latents, D).
        """
        frames = self.proj_context(frames)
        latents = self.latents.expand(len(frames), -1, -1)
        seen = None
        if mask is not None:
            # Latents see each other besides the frames.
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
        """latents: (B, K, D), seen besides frames: (B, T_mel, D). Returns (B, K, D)."""
        query = self.split_heads(self.to_q(latents))
        key, value = self.to_kv(torch.cat([latents, frames], dim=1)).chunk(2, dim=-1)
        key, value = self.split_heads(key), self.split_heads(value)
        return self.to_out(self.attend(query, key, value, mask))


class _GatedGelu(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        """values: (B, T, D). Returns (B, T, D / 2): the first half, gated by the second."""
        kept, gate = values.chunk(2, dim=-1)
        return kept * F.gelu(gate)


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        """values: (B, T, D). Returns (B, T, D)."""
        return F.normalize(values, dim=-1) * (math.sqrt(values.shape[-1]) * self.gamma)

"""The conformer (Gulati et al. 2020, arXiv 2005.08100) of IndexTTS-2, which encodes references.

It differs from the paper, as in upstream's code: each block has one feed-forward layer instead of
two half-steps, the convolution module uses LayerNorm, and attention uses absolute positions.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models._layers.attention import SelfAttention
from trainer.models.indextts2.network.sizes import ConformerSizes

MAX_FRAMES = 5000
"""Rows of the published position table; a row stands for two frames of features."""

_KERNEL = 15  # of the depthwise convolutions, as published


class Conformer(nn.Module):
    """Encode semantic features to half as many frames."""

    def __init__(self, feature_width: int, sizes: ConformerSizes) -> None:
        super().__init__()
        self.embed = _Subsampling(feature_width, sizes.width)
        self.encoders = nn.ModuleList(_Block(sizes) for _ in range(sizes.blocks))
        self.after_norm = nn.LayerNorm(sizes.width)

    def forward(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Encode references.

        features: (B, T, F), at least 3 frames. mask: bool (B, T). Returns frames (B, T', D) and
        their bool mask (B, T'), with T' = (T - 1) // 2.
        """
        hidden, positions = self.embed(features)
        # The convolution has kernel 3 and stride 2. An output is valid if its last input is.
        mask = mask[:, 2::2]
        for block in self.encoders:
            hidden = block(hidden, positions, mask)
        return self.after_norm(hidden), mask


class _Subsampling(nn.Module):
    def __init__(self, feature_width: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, width, 3, 2), nn.ReLU())
        self.out = nn.Sequential(nn.Linear(width * ((feature_width - 1) // 2), width))
        self.pos_enc = _PositionTable(width)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """features: (B, T, F). Returns hidden (B, T', D) and positions (1, T', D)."""
        planes = self.conv(features[:, None])  # (B, D, T', F')
        hidden = self.out(planes.transpose(1, 2).flatten(2))
        return hidden * math.sqrt(hidden.shape[-1]), self.pos_enc.pe[:, : hidden.shape[1]]


class _PositionTable(nn.Module):
    """A sinusoidal position table; a buffer, because the published weights contain it."""

    pe: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        places = torch.arange(MAX_FRAMES)[:, None]
        rates = torch.exp(torch.arange(0, width, 2) * -(math.log(10000.0) / width))
        table = torch.stack([torch.sin(places * rates), torch.cos(places * rates)], dim=-1)
        self.register_buffer("pe", table.flatten(1)[None])


class _Block(nn.Module):
    """Attention, convolution and feed-forward, each pre-norm with a residual connection."""

    def __init__(self, sizes: ConformerSizes) -> None:
        super().__init__()
        self.self_attn = _PositionAttention(sizes.width, sizes.heads)
        self.feed_forward = _FeedForward(sizes.width, sizes.inner)
        self.conv_module = _Convolution(sizes.width)
        self.norm_ff = nn.LayerNorm(sizes.width)
        self.norm_mha = nn.LayerNorm(sizes.width)
        self.norm_conv = nn.LayerNorm(sizes.width)
        self.norm_final = nn.LayerNorm(sizes.width)

    def forward(self, hidden: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """hidden: (B, T, D). positions: (1, T, D). mask: bool (B, T). Returns (B, T, D)."""
        hidden = hidden + self.self_attn(self.norm_mha(hidden), positions, mask)
        hidden = hidden + self.conv_module(self.norm_conv(hidden), mask)
        hidden = hidden + self.feed_forward(self.norm_ff(hidden))
        return self.norm_final(hidden)


class _PositionAttention(SelfAttention):
    """Attention with scores ((q + u) k + (q + v) p) / sqrt(d), where p encodes the key's position.

    Transformer-XL shifts the position scores; upstream's code does not, and neither do we.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(heads)
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.empty(heads, width // heads))
        self.pos_bias_v = nn.Parameter(torch.empty(heads, width // heads))
        nn.init.xavier_uniform_(self.pos_bias_u)
        nn.init.xavier_uniform_(self.pos_bias_v)

    def forward(self, hidden: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """hidden: (B, T, D). positions: (1, T, D). mask: bool (B, T). Returns (B, T, D)."""
        query = self.split_heads(self.linear_q(hidden))
        key = self.split_heads(self.linear_k(hidden))
        place = self.split_heads(self.linear_pos(positions)).expand_as(key)
        value = self.split_heads(self.linear_v(hidden))
        # Concatenation turns both products into one, so that fused kernels can be used. Attention
        # then divides by sqrt(2 d) instead of sqrt(d), which the factor sqrt(2) corrects.
        by_content = query + self.pos_bias_u[:, None]
        by_place = query + self.pos_bias_v[:, None]
        query = torch.cat([by_content, by_place], dim=-1) * math.sqrt(2)
        key = torch.cat([key, place], dim=-1)
        return self.linear_out(self.attend(query, key, value, mask[:, None, None]))


class _Convolution(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1)
        self.depthwise_conv = nn.Conv1d(width, width, _KERNEL, padding=_KERNEL // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pointwise_conv2 = nn.Conv1d(width, width, 1)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden: (B, T, D). mask: bool (B, T). Returns (B, T, D)."""
        padding = ~mask[:, None]
        planes = hidden.transpose(1, 2).masked_fill(padding, 0.0)  # (B, D, T)
        planes = self.depthwise_conv(F.glu(self.pointwise_conv1(planes), dim=1))
        planes = F.silu(self.norm(planes.transpose(1, 2))).transpose(1, 2)
        return self.pointwise_conv2(planes).masked_fill(padding, 0.0).transpose(1, 2)


class _FeedForward(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(width, inner)
        self.w_2 = nn.Linear(inner, width)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (B, T, D). Returns (B, T, D)."""
        return self.w_2(F.silu(self.w_1(hidden)))

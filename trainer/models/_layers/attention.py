"""SelfAttention: what every attention layer shares, with a plain and a fused way to compute it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence on itself; subclasses bring the projections.

    `use_sdpa` chooses between the explicit product, which keeps the (B, heads, T, T) weights for
    the backward pass, and PyTorch's fused kernels, which do not. It is a plain attribute, so that
    an optimization may set it on any model.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.use_sdpa = False

    def split_heads(self, values: Tensor) -> Tensor:
        """Turn (B, T, D) into (B, heads, T, D / heads)."""
        batch, length, width = values.shape
        return values.view(batch, length, self.num_heads, width // self.num_heads).transpose(1, 2)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """Mix the values by the similarity of queries and keys.

        query: (B, heads, T, D / heads). key, value: the same, or another T. mask: bool,
        broadcastable to (B, heads, T, T), True where a key may be seen; every query needs at least
        one; None shows all. is_causal: a query sees keys up to its own place, without a mask
        tensor, which the fastest kernels demand; not together with a mask. dropout: share of the
        weights set to zero. Returns (B, T, D).
        """
        if self.use_sdpa:
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
            )
        else:
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            hidden = _later_keys(scores) if is_causal else None if mask is None else ~mask
            if hidden is not None:
                scores = scores.masked_fill(hidden, -math.inf)
            weights = F.dropout(torch.softmax(scores, dim=-1), dropout, training=dropout > 0)
            mixed = weights.to(value.dtype) @ value
        batch, heads, length, head_width = mixed.shape
        return mixed.transpose(1, 2).reshape(batch, length, heads * head_width)


def _later_keys(scores: Tensor) -> Tensor:
    """Return bool (T, T), True where a key comes after its query; scores: (B, heads, T, T)."""
    length = scores.shape[-1]
    return torch.ones(length, length, dtype=torch.bool, device=scores.device).triu(1)

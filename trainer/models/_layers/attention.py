"""SelfAttention: what every attention layer shares, with a plain and a fused way to compute it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from trainer.models._layers.dropout import dropout as drop

_ROWS = 96
"""Queries that are computed together where only earlier keys count; 64 to 128 are alike fast."""


class SelfAttention(nn.Module):
    """Multi-head attention of a sequence on itself; subclasses bring the projections.

    `use_sdpa` chooses between the explicit product, which keeps the (B, heads, T, T) weights for
    the backward pass, and PyTorch's fused kernels, which do not. It is a plain attribute, so that
    an optimization may set it on any model. `runs_in_rows` counts how often the product was made
    block by block, which no fused kernel did.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.use_sdpa = False
        self.runs_in_rows = 0

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
        is_slow = is_causal and dropout > 0 and query.device.type == "cpu"
        if self.use_sdpa and is_slow and not torch.compiler.is_compiling():
            # No fused kernel of a CPU drops out; compiled code would grow with the number of rows.
            self.runs_in_rows += 1
            mixed = causal_in_rows(query, key, value, dropout)
        elif self.use_sdpa:
            mixed = F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=is_causal
            )
        else:
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            hidden = _later_keys(scores) if is_causal else None if mask is None else ~mask
            if hidden is not None:
                scores = scores.masked_fill(hidden, -math.inf)
            weights = drop(torch.softmax(scores, dim=-1), dropout)
            mixed = weights.to(value.dtype) @ value
        batch, heads, length, head_width = mixed.shape
        return mixed.transpose(1, 2).reshape(batch, length, heads * head_width)


def causal_in_rows(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Mix values causally, a block of queries at a time, without the keys that come later.

    query, key, value: (B, heads, T, D / heads). Returns the same shape. A mode may override it as a
    function of PyTorch.
    """
    if has_torch_function((query,)):
        parts = (query, key, value)
        return handle_torch_function(causal_in_rows, (query,), *parts, dropout)
    scaled = query / math.sqrt(query.shape[-1])
    keys = key.transpose(-2, -1)
    mixed = []
    for first in range(0, query.shape[2], _ROWS):
        end = min(first + _ROWS, query.shape[2])
        scores = scaled[:, :, first:end] @ keys[..., :end]  # (B, heads, rows, end)
        scores = scores.masked_fill(_later_keys(scores), -math.inf)
        weights = drop(torch.softmax(scores, dim=-1), dropout)
        mixed.append(weights.to(value.dtype) @ value[:, :, :end])
    return torch.cat(mixed, dim=2)


def _later_keys(scores: Tensor) -> Tensor:
    """Return bool (rows, keys), True where a key comes after its query.

    scores: (B, heads, rows, keys), of which the last query may see all keys.
    """
    rows, keys = scores.shape[-2:]
    later = torch.ones(rows, keys, dtype=torch.bool, device=scores.device)
    return later.triu(keys - rows + 1)

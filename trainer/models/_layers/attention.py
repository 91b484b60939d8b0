"""SelfAttention, the base class of all attention layers: explicit products or fused kernels."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from trainer.models._layers.dropout import dropout as drop

_ROWS = 96
"""Queries per block of causal attention on a CPU; 64 to 128 were equally fast when measured."""


class SelfAttention(nn.Module):
    """Multi-head attention without its projections, which subclasses define.

    `use_sdpa` selects PyTorch's fused kernels instead of the explicit product, which stores the
    (B, heads, T, T) weights for the backward pass. It is a plain attribute so that an optimization
    can set it on any model. `runs_in_rows` counts the calls that were computed block by block
    because no fused kernel supports them.
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
        """Compute scaled dot-product attention.

        query: (B, heads, T, D / heads). key, value: the same shape, but T may differ. mask: bool,
        broadcastable to (B, heads, T, T), True where a key is visible; every query needs at least
        one visible key; None shows all keys. is_causal: a query sees keys up to its own position.
        It needs no mask tensor, which rules out the fastest kernels, and cannot be combined with
        one. dropout: fraction of the weights set to zero. Returns (B, T, D).
        """
        is_slow = is_causal and dropout > 0 and query.device.type == "cpu"
        if self.use_sdpa and is_slow and not torch.compiler.is_compiling():
            # The fused CPU kernels do not support dropout. The loop is not compiled, because
            # tracing would unroll it and the code would grow with the sequence length.
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
            # Autocast computes softmax in fp32, but the product below needs the values' dtype.
            weights = drop(torch.softmax(scores, dim=-1), dropout)
            mixed = weights.to(value.dtype) @ value
        batch, heads, length, head_width = mixed.shape
        return mixed.transpose(1, 2).reshape(batch, length, heads * head_width)


def causal_in_rows(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Compute causal attention in blocks of queries, skipping the keys that come later.

    query, key, value: (B, heads, T, D / heads). Returns the same shape. A torch function mode can
    override it, like a function of PyTorch itself.
    """
    if has_torch_function((query,)):
        parts = (query, key, value)
        return handle_torch_function(causal_in_rows, (query,), *parts, dropout)
    # Scaling the query once is cheaper than scaling the (rows, keys) scores of every block.
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
    """Return a bool mask (rows, keys) that is True where a key comes after its query.

    scores: (B, heads, rows, keys); the last query sees all keys.
    """
    rows, keys = scores.shape[-2:]
    later = torch.ones(rows, keys, dtype=torch.bool, device=scores.device)
    # Row r of a block is query keys - rows + r, which sees the keys up to that number.
    return later.triu(keys - rows + 1)

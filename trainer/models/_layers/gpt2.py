"""The GPT-2 trunk (Radford et al. 2019): pre-norm blocks over embeddings that the caller makes.

It has no token and no position table of its own; module names are those of the published
state_dicts. `forward` is for training and takes whole rows; `extend` is for generation, keeps keys
and values in a cache, and never drops anything out.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models._layers.attention import SelfAttention
from trainer.models._layers.dropout import Dropout

_INIT_STD = 0.02


class Gpt2Trunk(nn.Module):
    """Causal blocks and the last LayerNorm.

    Rows pass the blocks padded to a multiple of `length_step`, so that few lengths exist where
    each costs a recording; `num_positions` counts those that came, `num_added` the padding.
    """

    def __init__(self, layers: int, width: int, heads: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.drop = Dropout(dropout)
        self.h = nn.ModuleList(Gpt2Block(width, heads, layers, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.length_step = 1
        self.num_positions = self.num_added = 0

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (B, T, D), padding only at the end of rows. Returns (B, T, D)."""
        batch, length, _ = hidden.shape
        hidden = self.drop(hidden)
        more = -length % self.length_step
        self.num_positions += batch * length
        self.num_added += batch * more
        if more:
            # Nothing before it sees what stands behind.
            hidden = F.pad(hidden, (0, 0, 0, more))
        for block in self.h:
            hidden = block(hidden)
        return self.ln_f(hidden[:, :length] if more else hidden)

    def extend(self, hidden: Tensor, cache: "KeyValueCache") -> Tensor:
        """Run the positions that follow those in the cache, and add them to it.

        hidden: (B, T, D); more than one position only while the cache is empty. Returns (B, T, D).
        """
        if cache.length and hidden.shape[1] != 1:
            raise ValueError(f"{hidden.shape[1]} positions after a filled cache; one at a time")
        for index, block in enumerate(self.h):
            hidden = block.extend(hidden, cache, index)  # type: ignore[operator]
        cache.length += hidden.shape[1]
        return self.ln_f(hidden)


class KeyValueCache:
    """Keys and values of all positions so far, in memory that is taken once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add a layer's keys and values, and return all of them so far.

        key, value: (B, heads, T, D / heads), T new positions; returned with all positions.
        """
        if layer not in self._keys:
            # The first write knows the type, which autocast may have chosen.
            batch, heads, _, width = key.shape
            self._keys[layer] = key.new_empty(batch, heads, self.capacity, width)
            self._values[layer] = value.new_empty(batch, heads, self.capacity, width)
        end = self.length + key.shape[2]
        self._keys[layer][:, :, self.length : end] = key
        self._values[layer][:, :, self.length : end] = value
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]


class Gpt2Block(nn.Module):
    """Attention, then a feed-forward layer, each normalised before and added after."""

    def __init__(self, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        # The more layers add to the residual stream, the less each adds at first.
        residual_std = _INIT_STD / math.sqrt(2 * layers)
        self.ln_1 = nn.LayerNorm(width)
        self.attn = _Attention(width, heads, residual_std, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = _FeedForward(width, residual_std, dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (B, T, D). Returns (B, T, D)."""
        hidden = hidden + self.attn(self.ln_1(hidden))
        return hidden + self.mlp(self.ln_2(hidden))

    def extend(self, hidden: Tensor, cache: KeyValueCache, layer: int) -> Tensor:
        """hidden: (B, T, D), new positions only. Returns (B, T, D)."""
        hidden = hidden + self.attn.extend(self.ln_1(hidden), cache, layer)
        return hidden + self.mlp.compute(self.ln_2(hidden))


class InputMajorLinear(nn.Module):
    """y = xW + b with W stored as (inputs, outputs), the transpose of nn.Linear's."""

    def __init__(self, inputs: int, outputs: int, std: float = _INIT_STD) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(0.0, std))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, values: Tensor) -> Tensor:
        """values: (B, T, D) of width `inputs`. Returns (B, T, D) of width `outputs`."""
        flat = values.reshape(-1, values.shape[-1])
        return torch.addmm(self.bias, flat, self.weight).view(*values.shape[:-1], -1)


class _Attention(SelfAttention):
    def __init__(self, width: int, heads: int, residual_std: float, dropout: float) -> None:
        super().__init__(heads)
        self.c_attn = InputMajorLinear(width, 3 * width)
        self.c_proj = InputMajorLinear(width, width, residual_std)
        self.resid_dropout = Dropout(dropout)
        self.dropout = dropout

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (B, T, D). Returns (B, T, D)."""
        query, key, value = self._project(hidden)
        dropout = self.dropout if self.training else 0.0
        mixed = self.attend(query, key, value, is_causal=True, dropout=dropout)
        return self.resid_dropout(self.c_proj(mixed))

    def extend(self, hidden: Tensor, cache: KeyValueCache, layer: int) -> Tensor:
        """hidden: (B, T, D), new positions only. Returns (B, T, D)."""
        query, key, value = self._project(hidden)
        key, value = cache.write(layer, key, value)
        # A single new position sees everything, so causality needs no word.
        return self.c_proj(self.attend(query, key, value, is_causal=hidden.shape[1] > 1))

    def _project(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turn (B, T, D) into queries, keys and values (B, heads, T, D / heads)."""
        query, key, value = self.c_attn(hidden).chunk(3, dim=-1)
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)


class _FeedForward(nn.Module):
    def __init__(self, width: int, residual_std: float, dropout: float) -> None:
        super().__init__()
        self.c_fc = InputMajorLinear(width, 4 * width)
        self.c_proj = InputMajorLinear(4 * width, width, residual_std)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (B, T, D). Returns (B, T, D)."""
        return self.dropout(self.compute(hidden))

    def compute(self, hidden: Tensor) -> Tensor:
        """Do it without dropout. hidden: (B, T, D). Returns (B, T, D)."""
        return self.c_proj(F.gelu(self.c_fc(hidden), approximate="tanh"))

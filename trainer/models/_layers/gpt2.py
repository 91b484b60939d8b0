"""The GPT-2 trunk (Radford et al. 2019) without token and position embeddings.

The caller supplies the embeddings. Module names match the published state_dicts of XTTS and
IndexTTS-2. `forward` is for training and takes whole rows; `extend` is for generation: it caches
keys and values and applies no dropout.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models._layers.attention import SelfAttention
from trainer.models._layers.dropout import Dropout

_INIT_STD = 0.02  # as in GPT-2


class Gpt2Trunk(nn.Module):
    """Causal blocks and the final LayerNorm.

    Rows are padded to a multiple of `length_step` while they pass through the blocks, because a
    CUDA graph has to be recorded for every new length. `num_positions` counts the positions that
    came in, `num_added` those added as padding.
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
            # Attention is causal, so positions before the padding never see it.
            hidden = F.pad(hidden, (0, 0, 0, more))
        for block in self.h:
            hidden = block(hidden)
        return self.ln_f(hidden[:, :length] if more else hidden)

    def extend(self, hidden: Tensor, cache: "KeyValueCache") -> Tensor:
        """Run new positions after those in the cache, and add them to it.

        hidden: (B, T, D); T must be 1 unless the cache is empty. Returns (B, T, D).

        Raises:
            ValueError: several positions follow a cache that is not empty.
        """
        if cache.length and hidden.shape[1] != 1:
            raise ValueError(
                f"got {hidden.shape[1]} positions for a cache that is not empty; expected 1"
            )
        for index, block in enumerate(self.h):
            hidden = block.extend(hidden, cache, index)  # type: ignore[operator]
        cache.length += hidden.shape[1]
        return self.ln_f(hidden)


class KeyValueCache:
    """Keys and values of all positions so far, in buffers that are allocated once."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append a layer's keys and values and return those of all positions.

        key, value: (B, heads, T, D / heads) of T new positions. Returns both for all positions.
        """
        if layer not in self._keys:
            # Allocated here because only now the dtype is known: autocast may have changed it.
            batch, heads, _, width = key.shape
            self._keys[layer] = key.new_empty(batch, heads, self.capacity, width)
            self._values[layer] = value.new_empty(batch, heads, self.capacity, width)
        end = self.length + key.shape[2]
        self._keys[layer][:, :, self.length : end] = key
        self._values[layer][:, :, self.length : end] = value
        return self._keys[layer][:, :, :end], self._values[layer][:, :, :end]


class Gpt2Block(nn.Module):
    """Attention and feed-forward, each with a LayerNorm before and a residual connection."""

    def __init__(self, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        # GPT-2 scales the weights of residual layers by 1 / sqrt(number of residual layers), two
        # per block, so that the variance of the residual stream does not grow with depth.
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
        # A single new position sees every cached key, so it needs no causal mask.
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
        """Apply the layer without dropout. hidden: (B, T, D). Returns (B, T, D)."""
        # GPT-2 was trained with the tanh approximation of GELU.
        return self.c_proj(F.gelu(self.c_fc(hidden), approximate="tanh"))

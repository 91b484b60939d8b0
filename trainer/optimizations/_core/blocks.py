"""Blocks: how optimizations that wrap a block's forward find what is inside the wrapping.

A block's class says what it computes. Compilation leaves a `program` on the block that computes
the same; checkpointing wraps either, so that the order in which the two are applied is free.
"""

from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode as is_watched


class Program(Protocol):
    """A compiled form of a block's forward."""

    resting: str
    """Why blocks do without it, in words; empty while they use it."""

    def run(self, block: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Compute the forward of a block."""
        ...


def compute_block(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Compute a block's forward, compiled if it is, without whatever wraps it."""
    if is_compiled(block):
        return block.program.run(block, *args, **kwargs)  # type: ignore[union-attr, operator]
    return type(block).forward(block, *args, **kwargs)


def is_compiled(block: nn.Module) -> bool:
    """Whether the next forward of a block runs compiled: in training, while nobody watches."""
    program: Program | None = vars(block).get("program")
    is_in_use = program is not None and not program.resting
    return is_in_use and block.training and torch.is_grad_enabled() and not is_watched()

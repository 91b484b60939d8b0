"""Run a block's forward, compiled or not, for optimizations that wrap it.

The class of a block defines what it computes. Compilation stores a `program` on the block that
computes the same, and gradient checkpointing wraps either, so the two can be applied in any order.
"""

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode as is_watched

if TYPE_CHECKING:
    # Loading the compiler takes seconds.
    from trainer.optimizations._core.compiled_block import SharedProgram


def compute_block(block: nn.Module, *args: object, **kwargs: object) -> object:
    """Compute a block's forward, compiled if possible, without its wrappers."""
    if is_compiled(block):
        return block.program.run(block, *args, **kwargs)  # type: ignore[union-attr, operator]
    return type(block).forward(block, *args, **kwargs)


def is_compiled(block: nn.Module) -> bool:
    """Return whether the next forward of a block runs compiled.

    Validation and generation run as written: their many shapes would each need a compilation. So
    does a forward inside a dispatch mode, such as the probe's, which needs to see the operators.
    """
    program: SharedProgram | None = vars(block).get("program")
    is_in_use = program is not None and not program.disabled_reason
    return is_in_use and block.training and torch.is_grad_enabled() and not is_watched()

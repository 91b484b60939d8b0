"""CUDA graphs of compiled blocks: what must hold around them, and how many were recorded.

The compiler records a graph for every block and every length, and plays it again instead of
launching kernel after kernel. What a graph writes lies at places of its own and lasts until the
next micro-step begins; and lengths have to come again, or every step would be recorded anew.
"""

from typing import Any

import torch
from torch import Tensor, nn

from trainer.core.train_state import Setup
from trainer.models._layers.gpt2 import Gpt2Trunk

LENGTH_STEP = 32
"""Rows are padded to multiples of this: at most 14 lengths for 11.6 s of XTTS."""


def prepare_graphs(setup: Setup) -> None:
    """Let a model whose blocks are about to be recorded keep to what recordings need."""
    setup.model.register_forward_pre_hook(_begin_micro_step)
    for trunk in _trunks(setup.model):
        trunk.length_step = LENGTH_STEP

    def take_out(parameter: Tensor) -> None:
        # The first gradient of several lies in a graph's memory, which the next micro-step reuses.
        if setup.config.training.accumulate * setup.adapted.parts > 1:
            _copy_gradient(parameter)

    for block in setup.family.blocks(setup.model):
        for parameter in block.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(take_out)


def drop_graphs(setup: Setup) -> None:
    """Let rows be as long as they are again, after nothing could be recorded."""
    for trunk in _trunks(setup.model):
        trunk.length_step = 1


def describe_graphs(setup: Setup) -> str:
    """Return how many graphs were recorded, what was not, and what rounding lengths up costs."""
    recorded, skipped = count_graphs(setup.device)
    parts = [f"{recorded} CUDA graphs recorded"]
    if skipped:
        parts.append(f"{skipped} could not be")
    real = sum(trunk.num_positions for trunk in _trunks(setup.model))
    added = sum(trunk.num_added for trunk in _trunks(setup.model))
    if real:
        parts.append(f"{100 * added / real:.1f} % positions added to lengths")
    return ", ".join(parts)


def count_graphs(device: torch.device) -> tuple[int, int]:
    """Return how many graphs the compiler holds for a device, and how often it could record none.

    Both are those of the process, as the compiler counts them.
    """
    # Imported here: it loads the compiler, which takes seconds.
    from torch._dynamo.utils import counters
    from torch._inductor.cudagraph_trees import get_manager

    skipped = counters["inductor"]["cudagraph_skips"]
    index = device.index if device.index is not None else 0
    manager = get_manager(index, create_if_none_exists=False)
    if manager is None:
        return 0, skipped
    roots = [node for nodes in manager.roots.values() for node in nodes]
    return sum(1 + node.num_descendants() for node in roots), skipped


def _begin_micro_step(model: nn.Module, inputs: Any) -> None:
    """Tell the compiler that what its graphs wrote before is no longer used."""
    if model.training:
        torch.compiler.cudagraph_mark_step_begin()


def _copy_gradient(parameter: Tensor) -> None:
    """Move a gradient of any shape out of a graph's memory, once."""
    grad = parameter.grad
    if grad is not None and not hasattr(grad, "is_taken_out"):
        parameter.grad = grad.clone()
        parameter.grad.is_taken_out = True  # type: ignore[attr-defined]


def _trunks(model: nn.Module) -> list[Gpt2Trunk]:
    return [module for module in model.modules() if isinstance(module, Gpt2Trunk)]

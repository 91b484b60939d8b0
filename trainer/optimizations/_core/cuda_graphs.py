"""Prepare a model for CUDA graphs of its compiled blocks, and count the graphs.

The compiler records one graph per block and length, and replays it instead of launching each
kernel. A graph's outputs live in its own memory and are valid until the next micro-step begins.
Lengths must repeat, or every step would record new graphs.
"""

import torch
from torch import Tensor, nn

from trainer.core.train_state import TrainState
from trainer.models._layers.gpt2 import Gpt2Trunk

LENGTH_STEP = 32
"""Rows are padded to multiples of this. Chosen by hand: it gives at most 14 lengths for the 11.6 s
of audio that XTTS allows, at the price of some percent more positions."""


def prepare_graphs(state: TrainState) -> None:
    """Make a model follow the rules of CUDA graphs before its blocks are recorded."""
    state.model.register_forward_pre_hook(_begin_micro_step)
    for trunk in _trunks(state.model):
        trunk.length_step = LENGTH_STEP

    def take_out(parameter: Tensor) -> None:
        # With several micro-steps, the first gradient is in memory that the next one overwrites.
        if state.config.training.accumulate * state.adapted.parts > 1:
            _copy_gradient(parameter)

    for block in state.family.blocks(state.model):
        for parameter in block.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(take_out)


def drop_graphs(state: TrainState) -> None:
    """Undo the padding of rows after recording failed."""
    for trunk in _trunks(state.model):
        trunk.length_step = 1


def describe_graphs(state: TrainState) -> str:
    """Describe how many graphs were recorded or failed, and what the padding costs."""
    recorded, skipped = count_graphs(state.device)
    parts = [f"{recorded} CUDA graphs recorded"]
    if skipped:
        parts.append(f"{skipped} could not be recorded")
    real = sum(trunk.num_positions for trunk in _trunks(state.model))
    added = sum(trunk.num_added for trunk in _trunks(state.model))
    if real:
        parts.append(f"{100 * added / real:.1f} % of positions added as padding")
    return ", ".join(parts)


def count_graphs(device: torch.device) -> tuple[int, int]:
    """Return how many graphs the compiler holds for a device, and how often recording failed.

    The compiler counts both per process.
    """
    # Imported here because loading the compiler takes seconds.
    from torch._dynamo.utils import counters
    from torch._inductor.cudagraph_trees import get_manager

    skipped = counters["inductor"]["cudagraph_skips"]
    index = device.index if device.index is not None else 0
    manager = get_manager(index, create_if_none_exists=False)
    if manager is None:
        return 0, skipped
    roots = [node for nodes in manager.roots.values() for node in nodes]
    return sum(1 + node.num_descendants() for node in roots), skipped


def _begin_micro_step(model: nn.Module, inputs: object) -> None:
    """Tell the compiler that the outputs of earlier graph replays are no longer needed."""
    if model.training:
        torch.compiler.cudagraph_mark_step_begin()


def _copy_gradient(parameter: Tensor) -> None:
    """Copy a gradient of any shape out of a graph's memory, once."""
    grad = parameter.grad
    if grad is not None and not hasattr(grad, "is_taken_out"):
        parameter.grad = grad.clone()
        parameter.grad.is_taken_out = True  # type: ignore[attr-defined]


def _trunks(model: nn.Module) -> list[Gpt2Trunk]:
    return [module for module in model.modules() if isinstance(module, Gpt2Trunk)]

"""What the frozen networks of XTTS v2 share: strict loading, and weights drawn at random."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from trainer.errors import CheckpointError
from trainer.models._weights import describe_misfit, shapes_of

Network = TypeVar("Network", bound=nn.Module)


def below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights under a prefix without it; a state without the prefix is already cut."""
    cut = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    return cut or dict(state)


def shape_of(state: dict[str, Tensor], name: str, dimensions: int, what: str) -> torch.Size:
    """Return the shape of one weight from which sizes are read.

    Raises:
        CheckpointError: the weight is absent or has another number of dimensions.
    """
    if name not in state:
        raise CheckpointError(
            f"{what} lacks '{name}'. It must come from a published XTTS v2 folder or from a "
            "checkpoint trained on one; give such a file."
        )
    shape = state[name].shape
    if len(shape) != dimensions:
        raise CheckpointError(
            f"{what} holds '{name}' with the shape {tuple(shape)}, but it must have {dimensions} "
            "dimensions. Give the weights of XTTS v2."
        )
    return shape


def count_modules(state: dict[str, Tensor], pattern: str, first: int = 0) -> int:
    """Return how many modules there are whose number, from `first` on, is the pattern's `{}`."""
    count = 0
    while any(name.startswith(pattern.format(first + count)) for name in state):
        count += 1
    return count


def load_frozen(make: Callable[[], Network], state: dict[str, Tensor], what: str) -> Network:
    """Make a network that never trains again, in float32, from exactly its weights.

    Raises:
        CheckpointError: weights are missing, left over or of another shape; it names them.
    """
    # Without storage nothing is drawn at random only to be replaced.
    with torch.device("meta"):
        network = make()
    expected = network.state_dict()
    if misfit := describe_misfit(shapes_of(state), shapes_of(expected)):
        raise CheckpointError(
            f"{what} does not fit XTTS v2 ({misfit}). Give the weights of a published XTTS v2 "
            "folder or of a checkpoint trained on one."
        )
    fitting = {
        # A copy, so that a file that the weights were mapped from can be closed or replaced.
        name: state[name].to(device="cpu", dtype=value.dtype, copy=True).contiguous()
        for name, value in expected.items()
    }
    network.load_state_dict(fitting, assign=True)
    return network.eval().requires_grad_(False)


def draw_weight(
    shape: torch.Size, generator: torch.Generator, gain: float = 1.0, fan_in: float | None = None
) -> Tensor:
    """Return a normal weight of any shape that keeps the scale of what goes through, times gain."""
    inputs = shape[1:].numel() if fan_in is None else fan_in
    return torch.randn(shape, generator=generator) * (gain / max(inputs, 1.0) ** 0.5)

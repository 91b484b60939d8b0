"""Strict loading and random weights for the networks of XTTS v2 that are not trained."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from trainer.core.errors import CheckpointError
from trainer.models._weights import describe_mismatch, shapes_of

Network = TypeVar("Network", bound=nn.Module)


def below(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the weights under a prefix, without it; all weights if none has the prefix."""
    cut = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
    return cut or dict(state)


def shape_of(state: dict[str, Tensor], name: str, dimensions: int, what: str) -> torch.Size:
    """Return the shape of a weight from which sizes are derived.

    Raises:
        CheckpointError: the weight is missing or has another number of dimensions.
    """
    if name not in state:
        raise CheckpointError(
            f"{what} has no '{name}'. Choose weights of a published XTTS v2 folder, or of a "
            "checkpoint that was trained from one."
        )
    shape = state[name].shape
    if len(shape) != dimensions:
        raise CheckpointError(
            f"{what} has '{name}' with shape {tuple(shape)}; expected {dimensions} dimensions. "
            "Choose the weights of XTTS v2."
        )
    return shape


def count_modules(state: dict[str, Tensor], pattern: str, first: int = 0) -> int:
    """Count the modules whose number replaces `{}` in the pattern, starting at `first`."""
    count = 0
    while any(name.startswith(pattern.format(first + count)) for name in state):
        count += 1
    return count


def load_strict(make: Callable[[], Network], state: dict[str, Tensor], what: str) -> Network:
    """Make a network in eval mode without gradients from its weights; loading is strict.

    Raises:
        CheckpointError: weights are missing, unexpected or of another shape; the message says
            which.
    """
    # On the meta device, no time is spent on initial weights that are replaced below.
    with torch.device("meta"):
        network = make()
    expected = network.state_dict()
    if misfit := describe_mismatch(shapes_of(state), shapes_of(expected)):
        raise CheckpointError(
            f"{what} does not match XTTS v2 ({misfit}). Choose the weights of a published XTTS v2 "
            "folder, or of a checkpoint that was trained from one."
        )
    fitting = {
        # A copy, because the weights may be mapped from a file that is closed or replaced later.
        name: state[name].to(device="cpu", dtype=value.dtype, copy=True).contiguous()
        for name, value in expected.items()
    }
    network.load_state_dict(fitting, assign=True)
    return network.eval().requires_grad_(False)


def draw_weight(
    shape: torch.Size, generator: torch.Generator, gain: float = 1.0, fan_in: float | None = None
) -> Tensor:
    """Return a normal random weight of a shape that scales activations by the gain."""
    # The sum over fan-in inputs grows with sqrt(fan-in), which the weights divide out.
    inputs = shape[1:].numel() if fan_in is None else fan_in
    return torch.randn(shape, generator=generator) * (gain / max(inputs, 1.0) ** 0.5)

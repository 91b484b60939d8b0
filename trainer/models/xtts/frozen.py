"""What the frozen networks of XTTS v2 share: strict loading, and weights drawn at random."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

from trainer.errors import CheckpointError

_NAMED = 3

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
    _check(expected, state, what)
    fitting = {
        # A copy, so that a file that the weights were mapped from can be closed or replaced.
        name: state[name].to(device="cpu", dtype=value.dtype, copy=True).contiguous()
        for name, value in expected.items()
    }
    network.load_state_dict(fitting, assign=True)
    return network.eval().requires_grad_(False)


def _check(expected: dict[str, Tensor], state: dict[str, Tensor], what: str) -> None:
    missing = [name for name in expected if name not in state]
    extra = [name for name in state if name not in expected]
    misshapen = [
        f"{name} {tuple(state[name].shape)} instead of {tuple(value.shape)}"
        for name, value in expected.items()
        if name in state and state[name].shape != value.shape
    ]
    kinds = {"missing": missing, "of another shape": misshapen, "not part of it": extra}
    problems = [f"{kind}: {_shorten(names)}" for kind, names in kinds.items() if names]
    if problems:
        raise CheckpointError(
            f"{what} does not fit XTTS v2 ({'; '.join(problems)}). Give the weights of a published "
            "XTTS v2 folder or of a checkpoint trained on one."
        )


def _shorten(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def draw_weight(
    shape: torch.Size, generator: torch.Generator, gain: float = 1.0, fan_in: float | None = None
) -> Tensor:
    """Return a normal weight of any shape that keeps the scale of what goes through, times gain."""
    inputs = shape[1:].numel() if fan_in is None else fan_in
    return torch.randn(shape, generator=generator) * (gain / max(inputs, 1.0) ** 0.5)

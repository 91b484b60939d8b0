"""A gate before changes in place: on a GPU the verdict on a step is known to the device alone.

Shut, it keeps every number as it is, and no host waits to know. What a rule changes entry by entry
goes through torch's fused SGD, the one kernel for lists that looks at such a verdict before it
touches memory; so the gate costs no pass over the memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.optimizers._core import foreach as lists


@dataclass(frozen=True)
class Gate:
    """Lets changes pass unless `found_inf` (a scalar on the device: 0 or 1) says otherwise.

    Without `found_inf` it is always open and rounds as the plain functions do; behind a verdict the
    last digits may differ, since one kernel does what were two.
    """

    found_inf: Tensor | None = None

    def move_(
        self, targets: list[Tensor], steps: list[Tensor], rate: float, *, keep: float = 1.0
    ) -> None:
        """Let targets (any shape) become keep * targets - rate * steps."""
        if self.found_inf is None:
            if keep != 1.0:
                lists.mul_(targets, keep)
            lists.add_(targets, steps, alpha=-rate)
            return
        dense = _is_dense(targets) and _is_dense(steps)
        move = _move_dense if dense else _move_each
        move(targets, steps, rate, keep, self.found_inf)

    def scale_(self, targets: list[Tensor], factor: float) -> None:
        """Multiply targets (any shape)."""
        if self.found_inf is None:
            lists.mul_(targets, factor)
            return
        self.move_(targets, targets, 1 - factor)

    def lerp_(self, targets: list[Tensor], ends: list[Tensor], share: float) -> None:
        """Draw targets (any shape) towards their ends."""
        if self.found_inf is None:
            lists.lerp_(targets, ends, share)
            return
        self.move_(targets, ends, -share, keep=1 - share)

    def mean_squares_(self, squares: list[Tensor], grads: list[Tensor], beta2: float) -> None:
        """Change moving averages of squared gradients (any shape)."""
        if self.found_inf is None:
            lists.mul_(squares, beta2)
            lists.addcmul_(squares, grads, grads, 1 - beta2)
            return
        self.move_(squares, list(lists.mul(grads, grads)), beta2 - 1, keep=beta2)

    def copy_(self, targets: list[Tensor], values: list[Tensor]) -> None:
        """Set targets to values (any shape)."""
        if self.found_inf is None:
            lists.copy_(targets, values)
            return
        for target, value in zip(targets, values, strict=True):
            target.copy_(self.pick(value, target))

    def pick(self, changed: Tensor, kept: Tensor) -> Tensor:
        """Return what has changed (any shape), or what is to be kept instead."""
        return (
            changed if self.found_inf is None else torch.where(self.found_inf == 0, changed, kept)
        )

    def without_nan(self, grad: Tensor) -> Tensor:
        """Return a gradient (any shape), or zeros if the step will not count."""
        return grad if self.found_inf is None else self.pick(grad, torch.zeros_like(grad))

    @contextmanager
    def around(self, weight: Tensor, state: dict[str, Any]) -> Iterator[None]:
        """Put a weight (any shape) and its state back after a block that changes them at will.

        It copies them first, so it is for rules that do far more arithmetic than that.
        """
        if self.found_inf is None:
            yield
            return
        kept = {name: value.clone() for name, value in state.items() if torch.is_tensor(value)}
        before = weight.clone()
        yield
        weight.copy_(self.pick(weight, before))
        for name, value in kept.items():
            state[name] = self.pick(state[name], value)


OPEN = Gate()


def _is_dense(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.is_contiguous() for tensor in tensors)


def _move_dense(
    targets: list[Tensor], steps: list[Tensor], rate: float, keep: float, found_inf: Tensor
) -> None:
    """Do as `Gate.move_` (any shape) in one kernel: x - rate * (step + pull * x)."""
    lists.fused_sgd_(
        targets,
        steps,
        [],
        weight_decay=(1 - keep) / rate if rate else 0.0,
        momentum=0.0,
        lr=rate,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
        found_inf=found_inf,
    )


def _move_each(
    targets: list[Tensor], steps: list[Tensor], rate: float, keep: float, found_inf: Tensor
) -> None:
    """Do as `Gate.move_` one by one: the kernel takes no tensors with gaps (any shape)."""
    for target, step in zip(targets, steps, strict=True):
        target.copy_(torch.where(found_inf == 0, keep * target - rate * step, target))

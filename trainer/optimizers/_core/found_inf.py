"""In-place updates that the device itself skips when the gradients of a step overflowed.

With fp16 loss scaling, whether a step counts (`found_inf`) is only known on the GPU, and reading it
would make the host wait. Element-wise updates therefore go through torch's fused SGD kernel, which
checks `found_inf` before it touches memory, so skipping costs no extra pass over memory.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.optimizers._core import foreach as lists


@dataclass(frozen=True)
class StepGate:
    """Applies in-place updates unless `found_inf` (a scalar on the device, 0 or 1) is 1.

    Without `found_inf` every update is applied, with the rounding of the plain list operations.
    With it the last digits may differ, because one kernel replaces two.
    """

    found_inf: Tensor | None = None

    def move_(
        self, targets: list[Tensor], steps: list[Tensor], rate: float, *, keep: float = 1.0
    ) -> None:
        """Set targets (any shape) to keep * targets - rate * steps."""
        if self.found_inf is None:
            # Without decay, one pass over memory less.
            if keep != 1.0:
                lists.mul_(targets, keep)
            lists.add_(targets, steps, alpha=-rate)
            return
        dense = _is_dense(targets) and _is_dense(steps)
        move = _move_dense if dense else _move_each
        move(targets, steps, rate, keep, self.found_inf)

    def scale_(self, targets: list[Tensor], factor: float) -> None:
        """Multiply targets (any shape) by a factor."""
        if self.found_inf is None:
            lists.mul_(targets, factor)
            return
        # x - (1 - factor) * x, so that the same fused kernel serves.
        self.move_(targets, targets, 1 - factor)

    def lerp_(self, targets: list[Tensor], ends: list[Tensor], share: float) -> None:
        """Interpolate targets (any shape) linearly towards `ends` by `share`."""
        if self.found_inf is None:
            lists.lerp_(targets, ends, share)
            return
        self.move_(targets, ends, -share, keep=1 - share)

    def mean_squares_(self, squares: list[Tensor], grads: list[Tensor], beta2: float) -> None:
        """Update moving averages of squared gradients (any shape)."""
        if self.found_inf is None:
            lists.mul_(squares, beta2)
            lists.addcmul_(squares, grads, grads, 1 - beta2)
            return
        self.move_(squares, list(lists.mul(grads, grads)), beta2 - 1, keep=beta2)

    def copy_(self, targets: list[Tensor], values: list[Tensor]) -> None:
        """Copy values (any shape) into targets."""
        if self.found_inf is None:
            lists.copy_(targets, values)
            return
        # No fused kernel copies conditionally, so this costs one more pass.
        for target, value in zip(targets, values, strict=True):
            target.copy_(self.pick(value, target))

    def pick(self, changed: Tensor, kept: Tensor) -> Tensor:
        """Return `changed` (any shape), or `kept` if the step is skipped."""
        return (
            changed if self.found_inf is None else torch.where(self.found_inf == 0, changed, kept)
        )

    def without_nan(self, grad: Tensor) -> Tensor:
        """Return a gradient (any shape), or zeros if the step is skipped.

        Decompositions such as eigh fail on NaN, so rules that use them need finite numbers.
        """
        return grad if self.found_inf is None else self.pick(grad, torch.zeros_like(grad))

    @contextmanager
    def around(self, weight: Tensor, state: dict[str, Tensor]) -> Iterator[None]:
        """Restore a weight (any shape) and its state after the block if the step is skipped.

        This copies both, so it is meant for rules whose matrix work dwarfs a copy (SOAP, Kron).
        """
        if self.found_inf is None:
            yield
            return
        # Only tensors: DeferredFoundInf corrects the numbers that the host counts.
        kept = {name: value.clone() for name, value in state.items() if torch.is_tensor(value)}
        before = weight.clone()
        yield
        weight.copy_(self.pick(weight, before))
        for name, value in kept.items():
            state[name] = self.pick(state[name], value)


OPEN = StepGate()


def _is_dense(tensors: Sequence[Tensor]) -> bool:
    return all(tensor.is_contiguous() for tensor in tensors)


def _move_dense(
    targets: list[Tensor], steps: list[Tensor], rate: float, keep: float, found_inf: Tensor
) -> None:
    """Apply `Gate.move_` (any shape) in one kernel: x - rate * (step + decay * x)."""
    # Fused SGD without momentum computes exactly this; its weight decay stands in for `keep`.
    lists.fused_sgd_(
        targets,
        steps,
        [],
        # At rate 0 `keep` is 1 in every rule that calls this, so no decay is lost.
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
    """Apply `Gate.move_` one tensor at a time; the kernel needs contiguous tensors (any shape)."""
    for target, step in zip(targets, steps, strict=True):
        target.copy_(torch.where(found_inf == 0, keep * target - rate * step, target))

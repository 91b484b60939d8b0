"""Prodigy's step on a CPU without a compiler: the fused kernel of Adam among few other passes.

A CPU's memory is the host's, so the scalars of a step are read once and nothing waits for them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.optimizers import _lists as lists

PIECE = 1 << 18
"""Entries worked on at once, a power of two that assets/measure_optimizers.py likes best."""
_LONG_AGO = 1e9
"""A step at which Adam's bias correction is one."""


@dataclass(frozen=True)
class HostNumbers:
    """The scalars of a step as plain numbers; `eps` is Prodigy's d * eps."""

    betas: tuple[float, float, float]
    eps: float
    d: float
    rate: float
    weight_of_grad: float
    weight_decay: float


def step_on_host(
    columns: Sequence[list[Tensor]], numbers: HostNumbers
) -> tuple[list[Tensor], list[Tensor]]:
    """Do all of a step for flat tensors.

    Args:
        columns: weights, gradients, both averages, and, unless those are estimated apart, the
            weighted sums of gradients and the first weights; lists of flat tensors (any shape).
        numbers: The scalars of the step.

    Returns:
        Scalars that add up to <g, p0 - p> and to |s|.
    """
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    like = columns[0][0]
    scratch = torch.empty(PIECE, dtype=like.dtype)
    counter = torch.full((), _LONG_AGO)
    for weight, grad, *averages_and_sums in _pieces(columns):
        # One buffer for all that is soon forgotten, so that it stays in the cache.
        buffer = scratch if weight.numel() == PIECE else scratch[: weight.numel()]
        mean, square, *estimators = averages_and_sums
        if estimators:
            total, first = estimators
            parts[0].append(torch.dot(grad, torch.sub(first, weight, out=buffer)))
            total.mul_(numbers.betas[2]).add_(grad, alpha=numbers.weight_of_grad)
            parts[1].append(torch.abs(total, out=buffer).sum())
        lists.fused_adamw_(
            [weight],
            [torch.mul(grad, numbers.d, out=buffer)],
            [mean],
            [square],
            [],
            [counter],
            lr=numbers.rate,
            beta1=numbers.betas[0],
            beta2=numbers.betas[1],
            weight_decay=numbers.weight_decay,
            eps=numbers.eps,
            amsgrad=False,
            maximize=False,
        )
    return parts


def _pieces(columns: Sequence[list[Tensor]]) -> Iterator[tuple[Tensor, ...]]:
    """Yield rows of flat tensors, those of long ones in pieces (any shape)."""
    for row in zip(*columns, strict=True):
        if row[0].numel() <= PIECE:
            yield row
        else:
            # Nothing here is differentiated, so the cheap form of split is safe.
            yield from zip(*(torch.unsafe_split(x, PIECE) for x in row), strict=True)

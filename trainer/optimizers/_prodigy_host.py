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
_SMALL = 1 << 12
"""Tensors up to this many entries are handed over as lists: calls would cost more than the work."""
_LONG_AGO = 1e9
"""A step at which Adam's bias correction is one."""


Parts = tuple[list[Tensor], list[Tensor]]
"""Scalars that add up to <g, p0 - p> and to |s|."""


@dataclass(frozen=True)
class HostNumbers:
    """The scalars of a step as plain numbers; `eps` is Prodigy's d * eps."""

    betas: tuple[float, float, float]
    eps: float
    d: float
    rate: float
    weight_of_grad: float
    weight_decay: float


def step_on_host(columns: Sequence[list[Tensor]], numbers: HostNumbers) -> Parts:
    """Do all of a step for flat tensors.

    Args:
        columns: weights, gradients, both averages, the weighted sums of gradients and the first
            weights; lists of flat tensors (any shape).
        numbers: The scalars of the step.

    Returns:
        Scalars that add up to <g, p0 - p> and to |s|.
    """
    small = [row for row in zip(*columns, strict=True) if row[0].numel() <= _SMALL]
    large = [row for row in zip(*columns, strict=True) if row[0].numel() > _SMALL]
    parts = _step_small([list(column) for column in zip(*small, strict=True)], numbers)
    scratch = torch.empty(PIECE, dtype=columns[0][0].dtype)
    for weight, grad, *averages, total, first in _pieces(large):
        # One buffer for all that is soon forgotten, so that it stays in the cache.
        buffer = scratch if weight.numel() == PIECE else scratch[: weight.numel()]
        parts[0].append(torch.dot(grad, torch.sub(first, weight, out=buffer)))
        total.mul_(numbers.betas[2]).add_(grad, alpha=numbers.weight_of_grad)
        parts[1].append(torch.abs(total, out=buffer).sum())
        scaled = torch.mul(grad, numbers.d, out=buffer)
        move_on_host([[weight], [scaled], *([average] for average in averages)], numbers)
    return parts


def _step_small(columns: list[list[Tensor]], numbers: HostNumbers) -> Parts:
    """As `step_on_host` (flat tensors, any shape), all at once."""
    if not columns:
        return [], []
    weights, grads, means, squares, totals, firsts = columns
    ways = lists.sub(firsts, weights)
    products = [torch.dot(grad, way) for grad, way in zip(grads, ways, strict=True)]
    lists.mul_(totals, numbers.betas[2])
    lists.add_(totals, grads, alpha=numbers.weight_of_grad)
    move_on_host([weights, list(lists.mul(grads, numbers.d)), means, squares], numbers)
    return products, [size.sum() for size in lists.abs(totals)]


def move_on_host(columns: list[list[Tensor]], numbers: HostNumbers) -> None:
    """Apply Adam without bias correction to weights, scaled gradients and averages (any shape)."""
    weights, scaled, means, squares = columns
    counter = torch.full((), _LONG_AGO)
    lists.fused_adamw_(
        weights,
        scaled,
        means,
        squares,
        [],
        [counter] * len(weights),
        lr=numbers.rate,
        beta1=numbers.betas[0],
        beta2=numbers.betas[1],
        weight_decay=numbers.weight_decay,
        eps=numbers.eps,
        amsgrad=False,
        maximize=False,
    )


def _pieces(rows: list[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    """Yield rows of flat tensors, those of long ones in pieces (any shape)."""
    for row in rows:
        if row[0].numel() <= PIECE:
            yield row
        else:
            # Nothing here is differentiated, so the cheap form of split is safe.
            yield from zip(*(torch.unsafe_split(x, PIECE) for x in row), strict=True)

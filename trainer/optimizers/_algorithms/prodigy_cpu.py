"""Prodigy's step on a CPU: torch's fused Adam kernel and a few other passes.

On a CPU the scalars of a step are in host memory, so reading them waits for nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.param_table import pieces_of_row

PIECE = 1 << 18
"""Entries per piece; the power of two that was fastest in benchmarks/measure_optimizers.py."""
_SMALL = 1 << 12
"""Tensors up to this many entries are processed as one list, because the calls would cost more
than the work; chosen by hand."""
_LONG_AGO = 1e9
"""A step count at which Adam's bias correction is 1; Prodigy's own, if any, is in the rate."""
_ROW = 1 << 13
"""Entries per BLAS call: longer rows are split among threads, which then wait for each other."""
_SMALLEST_WEIGHT = 1e-30
"""The smallest gradient weight that `_accumulate` may divide by without leaving float32's range."""

Parts = tuple[list[Tensor], list[Tensor]]
"""Partial sums (scalars) of <g, p0 - p> and of |s|."""


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
    """Run a whole step for flat tensors.

    Args:
        columns: weights, gradients, both moments, the weighted gradient sums and the initial
            weights; lists of flat tensors.
        numbers: The scalars of the step.

    Returns:
        Partial sums (scalars) of <g, p0 - p> and of |s|.
    """
    # Imported here, because only this optimizer on a CPU needs it.
    from scipy.linalg import get_blas_funcs

    rows = list(zip(*columns, strict=True))
    small = [row for row in rows if row[0].numel() <= _SMALL]
    parts = _step_small([list(column) for column in zip(*small, strict=True)], numbers)
    scratch = torch.empty(PIECE, dtype=columns[0][0].dtype)
    # Tensors, because torch would wrap a plain number in a tensor at every call.
    d, counter = torch.full((), numbers.d, dtype=scratch.dtype), torch.full((), _LONG_AGO)
    add: Callable[[np.ndarray], float] = get_blas_funcs(  # type: ignore[assignment]
        "asum", dtype=scratch.numpy().dtype
    )
    sizes = 0.0
    large = [row for row in rows if row[0].numel() > _SMALL]
    pieces = (piece for row in large for piece in pieces_of_row(row, PIECE))
    for weight, grad, mean, square, total, first in pieces:
        # All temporaries share one buffer, so that it stays in the cache.
        buffer = scratch if weight.numel() == PIECE else scratch[: weight.numel()]
        _accumulate([total], [grad], numbers)
        sizes += _sum_of_sizes(total, add)
        # Before the weights move: the product belongs to those that the gradient was computed at.
        parts[0].append(torch.dot(grad, torch.sub(first, weight, out=buffer)))
        torch.mul(grad, d, out=buffer)
        move_on_host([[weight], [buffer], [mean], [square]], numbers, counter)
    parts[1].append(torch.full((), sizes, dtype=torch.float64).to(scratch.dtype))
    return parts


def _step_small(columns: list[list[Tensor]], numbers: HostNumbers) -> Parts:
    """Run `step_on_host` for many small flat tensors at once."""
    if not columns:
        return [], []
    weights, grads, means, squares, totals, firsts = columns
    ways = torch.cat(list(lists.sub(firsts, weights)))
    products = [torch.dot(torch.cat(grads), ways)]
    _accumulate(totals, grads, numbers)
    move_on_host([weights, list(lists.mul(grads, numbers.d)), means, squares], numbers)
    return products, [torch.cat(totals).abs_().sum()]


def _sum_of_sizes(total: Tensor, add: Callable[[np.ndarray], float]) -> float:
    """Return sum |s| (flat) by BLAS asum, which only reads; torch would first write |s|."""
    values = total.numpy()
    return sum([add(values[k : k + _ROW]) for k in range(0, total.numel(), _ROW)])


def _accumulate(totals: list[Tensor], grads: list[Tensor], numbers: HostNumbers) -> None:
    """Set s to beta3 * s + w * g (any shape) in one pass.

    Fused SGD computes s - lr * (g + decay * s); lr = -w and decay = -(1 - beta3) / w give this sum.
    """
    weight, loss = numbers.weight_of_grad, 1 - numbers.betas[2]
    # Outside of this range the division overflows or underflows; two plain passes do not.
    if not _SMALLEST_WEIGHT < weight < 1 / _SMALLEST_WEIGHT:
        lists.mul_(totals, numbers.betas[2])
        lists.add_(totals, grads, alpha=weight)
        return
    lists.fused_sgd_(
        totals,
        grads,
        [],
        lr=-weight,
        weight_decay=-loss / weight,
        momentum=0.0,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def move_on_host(
    columns: list[list[Tensor]], numbers: HostNumbers, counter: Tensor | None = None
) -> None:
    """Apply Adam without bias correction to weights, scaled gradients and averages (any shape).

    `counter` is the step count (a scalar), for callers that make it only once.
    """
    weights, scaled, means, squares = columns
    counter = torch.full((), _LONG_AGO) if counter is None else counter
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

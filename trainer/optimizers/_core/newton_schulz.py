"""Newton-Schulz iteration: push the singular values of many matrices towards one."""

import math
from collections import defaultdict

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic polynomial in Jordan's post on Muon. They maximise the slope at zero,
so that small singular values grow fast; singular values end up near one, not exactly at it."""
_STEPS = 5  # as in Jordan's code and torch.optim.Muon


def as_matrix(tensor: Tensor) -> Tensor:
    """View a tensor of any shape whose first dimension is the outputs as (outputs, rest)."""
    return tensor.reshape(tensor.size(0), -1)


def orthogonalize(matrices: list[Tensor], *, eps: float = 1e-7) -> list[Tensor]:
    """Return matrices of any 2-D shapes with all singular values pushed to about one.

    Matrices of equal shape are batched. A GPU computes in bfloat16, which is precise enough for
    this polynomial and several times faster; other devices compute in float32.
    """
    numbers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, matrix in enumerate(matrices):
        numbers[matrix.size(0), matrix.size(1)].append(number)
    found: dict[int, Tensor] = {}
    for rows in numbers.values():
        stack = torch.stack([matrices[row] for row in rows])
        found |= zip(rows, _iterate(stack, eps).unbind(), strict=True)
    return [found[number] for number in range(len(matrices))]


def step_factor(shape: torch.Size, scale: str) -> float:
    """Return what an orthogonal update of a shape is multiplied by.

    `match_adamw` gives it the RMS of a typical AdamW update: 0.2 * sqrt(larger side), Liu et al.
    2025, arXiv 2502.16982, equation 4. Otherwise as in Jordan's code: sqrt(outputs / inputs), at
    least 1.
    """
    outputs, inputs = shape[0], math.prod(shape[1:])
    if scale == "match_adamw":
        return 0.2 * math.sqrt(max(outputs, inputs))
    return math.sqrt(max(1.0, outputs / inputs))


def _iterate(stack: Tensor, eps: float) -> Tensor:
    """Run the iteration on a batch of matrices (the last two dimensions)."""
    first, second, third = _COEFFICIENTS
    x = stack.bfloat16() if stack.is_cuda else stack.float()
    # Wide, so that the Gram matrix has the smaller side.
    is_tall = x.size(-2) > x.size(-1)
    x = x.mT if is_tall else x
    # The Frobenius norm bounds the largest singular value, which must start at 1 or below.
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(_STEPS):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=second, alpha=third)
        x = torch.baddbmm(x, polynomial, x, beta=first)
    return (x.mT if is_tall else x).to(stack.dtype)

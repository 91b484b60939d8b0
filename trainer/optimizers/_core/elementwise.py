"""Rules that look at one entry at a time, written for lists of pieces (any shape)."""

import math

import torch
from torch import Tensor

from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.found_inf import Gate
from trainer.optimizers._core.param_table import Table

_FUSED_DEVICES = ("cpu", "cuda")


def is_vector(weight: Tensor) -> bool:
    """Whether a weight of any shape holds one number per output: a bias or a gain."""
    return weight.dim() == 0 or weight.numel() == weight.size(0)


def apply_adamw(
    pieces: list[list[Tensor]],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
    gate: Gate,
) -> None:
    """Apply AdamW (arXiv 1711.05101) to pieces: weights, gradients, means, mean squares."""
    weights, grads, means, squares = pieces
    device = weights[0].device
    if device.type in _FUSED_DEVICES:
        counter = torch.full((), step, dtype=torch.float32, device=device)
        lists.fused_adamw_(
            weights,
            grads,
            means,
            squares,
            [],
            [counter] * len(weights),
            lr=lr,
            beta1=betas[0],
            beta2=betas[1],
            weight_decay=weight_decay,
            eps=eps,
            amsgrad=False,
            maximize=False,
            found_inf=gate.found_inf,
        )
        return
    gate.lerp_(means, grads, 1 - betas[0])
    gate.mean_squares_(squares, grads, betas[1])
    size = step_size(lr, betas, step)
    denominators = adam_denominators(squares, eps, betas[1], step)
    lists.mul_(weights, 1 - lr * weight_decay)
    lists.addcdiv_(weights, means, denominators, -size)


def adam_denominators(squares: list[Tensor], eps: float, beta2: float, step: int) -> list[Tensor]:
    """Return sqrt(v / (1 - beta2**step)) + eps for averages v of any shape."""
    roots = lists.sqrt(squares)
    lists.mul_(roots, 1 / math.sqrt(1 - beta2**step))
    lists.add_(roots, eps)
    return list(roots)


def step_size(lr: float, betas: tuple[float, float], step: int) -> float:
    """Return the rate divided by the bias correction of the gradient's mean."""
    return lr / (1 - betas[0] ** step)


def apply_updates(
    table: Table, updates: list[Tensor], *, lr: float, cautious_of: list[Tensor] | None = None
) -> None:
    """Decay the weights of a table and subtract lr times whole updates (any shape).

    With `cautious_of`, entries whose update points against those gradients are left out and the
    others enlarged by the inverse of their share (arXiv 2411.16085, algorithm 1); `updates` change.
    """
    if cautious_of is not None:
        mask_disagreement(updates, cautious_of)
    table.gate.move_(table.weights, updates, lr, keep=1 - lr * table.group["weight_decay"])


def mask_disagreement(updates: list[Tensor], grads: list[Tensor]) -> None:
    """Zero the entries of updates (any shape) that disagree in sign; scale the others up."""
    for update, grad in zip(updates, grads, strict=True):
        mask = (update * grad > 0).to(update.dtype)
        update.mul_(mask).div_(mask.mean().clamp_(min=1e-3))

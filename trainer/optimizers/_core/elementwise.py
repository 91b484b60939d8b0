"""Element-wise update rules shared by several optimizers, over lists of tensors of any shape."""

import math

import torch
from torch import Tensor

from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.found_inf import StepGate
from trainer.optimizers._core.param_table import ParamTable

# Devices that have torch's fused AdamW kernel; the others use the list operations below.
_FUSED_DEVICES = ("cpu", "cuda")


def is_vector(weight: Tensor) -> bool:
    """Return whether a weight of any shape holds one number per output, like a bias or a gain."""
    # Counting dimensions is not enough: weight-norm gains of convolutions have shape (out, 1, 1).
    return weight.dim() == 0 or weight.numel() == weight.size(0)


def apply_adamw(
    pieces: list[list[Tensor]],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    step: int,
    gate: StepGate,
) -> None:
    """Apply one AdamW step (arXiv 1711.05101, algorithm 2) in place.

    `pieces` are the weights, gradients, first moments and second moments.
    """
    weights, grads, means, squares = pieces
    device = weights[0].device
    if device.type in _FUSED_DEVICES:
        # The kernel wants the step of each tensor as a tensor; all of them share this one.
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
    """Return sqrt(v / (1 - beta2**step)) + eps for second moments v of any shape."""
    roots = lists.sqrt(squares)
    # Epsilon is added after bias correction, as in torch; SOAP and Prodigy add it elsewhere.
    lists.mul_(roots, 1 / math.sqrt(1 - beta2**step))
    lists.add_(roots, eps)
    return list(roots)


def step_size(lr: float, betas: tuple[float, float], step: int) -> float:
    """Return the learning rate divided by the bias correction of the first moment."""
    return lr / (1 - betas[0] ** step)


def apply_updates(
    table: ParamTable, updates: list[Tensor], *, lr: float, cautious_of: list[Tensor] | None = None
) -> None:
    """Apply weight decay to a table, then subtract lr times the updates (whole tensors, any shape).

    With `cautious_of` (gradients), entries whose update has the opposite sign of the gradient are
    skipped and the others are scaled up (arXiv 2411.16085, algorithm 1). Changes `updates`.
    """
    if cautious_of is not None:
        mask_disagreement(updates, cautious_of)
    table.gate.move_(table.weights, updates, lr, keep=1 - lr * table.group["weight_decay"])


def mask_disagreement(updates: list[Tensor], grads: list[Tensor]) -> None:
    """Zero the entries of updates (any shape) whose sign disagrees; scale up the others."""
    for update, grad in zip(updates, grads, strict=True):
        mask = (update * grad > 0).to(update.dtype)
        # The floor, from the authors' code, limits the scale to 1000 when nearly all disagree.
        update.mul_(mask).div_(mask.mean().clamp_(min=1e-3))

"""Element-wise update rules shared by several optimizers, over lists of tensors of any shape."""

import math

import torch
from torch import Tensor

from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.param_table import ParamTable, Pieces


def apply_adamw(
    table: ParamTable, pieces: Pieces, betas: tuple[float, float] | None = None
) -> None:
    """Apply one AdamW step (arXiv 1711.05101, algorithm 2) in place, with torch's fused kernel.

    `pieces` are the weights, gradients, first moments and second moments; `betas` replace those of
    the group.
    """
    weights, grads, means, squares = pieces
    group = table.group
    beta1, beta2 = betas or group["betas"]
    # The kernel wants the step of each tensor as a tensor; all of them share this one.
    counter = torch.full((), table.step, dtype=torch.float32, device=weights[0].device)
    lists.fused_adamw_(
        weights,
        grads,
        means,
        squares,
        [],
        [counter] * len(weights),
        lr=group["lr"],
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        amsgrad=False,
        maximize=False,
        found_inf=table.gate.found_inf,
    )


def apply_cautious_adamw(table: ParamTable) -> None:
    """Apply a cautious AdamW step whose moments are up to date (arXiv 2411.16085, algorithm 1)."""
    beta1, beta2 = table.group["betas"]
    squares = table.column("exp_avg_sq")
    denominators = adam_denominators(squares, table.group["eps"], beta2, table.step)
    updates = list(lists.div(table.column("exp_avg"), denominators))
    lists.div_(updates, 1 - beta1**table.step)
    mask_disagreement(updates, table.grads)
    apply_updates(table, table.weights, updates)


def apply_updates(table: ParamTable, weights: list[Tensor], updates: list[Tensor]) -> None:
    """Apply weight decay to weights of a table (any shape), then subtract lr times the updates."""
    lr = table.group["lr"]
    table.gate.move_(weights, updates, lr, keep=1 - lr * table.group["weight_decay"])


def adam_denominators(squares: list[Tensor], eps: float, beta2: float, step: int) -> list[Tensor]:
    """Return sqrt(v / (1 - beta2**step)) + eps for second moments v of any shape."""
    roots = lists.sqrt(squares)
    # Epsilon is added after bias correction, as in torch; SOAP and Prodigy add it elsewhere.
    lists.mul_(roots, 1 / math.sqrt(1 - beta2**step))
    lists.add_(roots, eps)
    return list(roots)


def mask_disagreement(updates: list[Tensor], grads: list[Tensor]) -> None:
    """Zero the entries of updates (any shape) whose sign disagrees; scale up the others.

    The scale is a mean over a tensor, so these are whole tensors and not pieces.
    """
    for update, grad in zip(updates, grads, strict=True):
        mask = (update * grad > 0).to(update.dtype)
        # The floor, from the authors' code, limits the scale to 1000 when nearly all disagree.
        update.mul_(mask).div_(mask.mean().clamp_(min=1e-3))

"""MARS (Yuan et al. 2024, arXiv 2411.10438): gradients corrected by their change since last step.

c = g + gamma * beta1 / (1 - beta1) * (g - g_previous), clipped to norm 1 per tensor (algorithm 2
and equation 8). This is the approximate form, which needs no second gradient per step. Biases and
gains are not corrected: they get AdamW at the same learning rate. The authors' code also gives
convolutions AdamW, because it corrects 2-D tensors only; here they are corrected.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.core.options import option
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.elementwise import apply_adamw
from trainer.optimizers._core.param_groups import Group, is_vector
from trainer.optimizers._core.param_table import ParamTable, Pieces, TableOptimizer, cut_rows
from trainer.optimizers._core.shared_options import (
    beta1_field,
    eps_field,
    lr_field,
    weight_decay_field,
)

VECTOR_BETAS = (0.9, 0.95)
"""Betas of AdamW for biases and gains, as in the authors' code."""


@dataclass(frozen=True)
class MarsOptions:
    """The options that all MARS variants share."""

    lr: float | None = lr_field("Empty: the model family's default. One rate for all weights.")
    # Gamma is the paper's; gamma and beta 1 are those of the authors' language-model runs.
    gamma: float = option(
        0.025,
        "Gamma",
        "How strongly the change of a gradient corrects it; 0 turns the correction off.",
        min=0.0,
        max=1.0,
    )
    beta1: float = beta1_field(0.95)
    eps: float = eps_field()
    weight_decay: float = weight_decay_field()


class Mars(TableOptimizer):
    """Base of the MARS variants: the split, the correction, the copy of the last gradient."""

    def state_names(self, weight: Tensor) -> tuple[str, ...]:
        """Return AdamW's moments of a vector, or the rule's states of another weight."""
        return ("exp_avg", "exp_avg_sq") if is_vector(weight) else (*self.states, "last_grad")

    def update_table(self, table: ParamTable) -> None:
        """Update the weights and states of a table once."""
        vectors, others = table.split(is_vector)
        for pieces in vectors.pieces("exp_avg", "exp_avg_sq"):
            apply_adamw(vectors, pieces, VECTOR_BETAS)
        if others.weights:
            self.update_corrected(others)

    def update_corrected(self, table: ParamTable) -> None:
        """Update the weights that are not vectors."""
        raise NotImplementedError

    def corrected(self, table: ParamTable) -> Iterator[tuple[Pieces, list[Tensor]]]:
        """Yield pieces (weights, gradients, states) and their corrected gradients.

        The gradients are copied into `last_grad`. Keeping references instead would be a bug:
        `zero_grad(set_to_none=False)` reuses their memory, and the correction would always be 0.
        """
        strength = _strength(table.group)
        # A pass of its own: the norm needs all pieces of a tensor before the first is clipped.
        factors = _clip_factors(table, strength)
        columns = [table.weights, table.grads, table.column("last_grad")]
        columns += [table.column(name) for name in self.states]
        for rows, (weights, grads, last, *states) in cut_rows(columns):
            corrected = _correct(grads, last, strength)
            lists.mul_(corrected, [factors[row] for row in rows])
            table.gate.copy_(last, grads)
            yield [weights, grads, *states], corrected


def _strength(group: Group) -> float:
    beta1 = group["betas"][0]
    return group["gamma"] * beta1 / (1 - beta1)


def _correct(grads: list[Tensor], last: list[Tensor], strength: float) -> list[Tensor]:
    """Return g + strength * (g - last) for gradients of any shape."""
    corrected = list(lists.mul(grads, 1 + strength))
    lists.add_(corrected, last, alpha=-strength)
    return corrected


def _clip_factors(table: ParamTable, strength: float) -> list[Tensor]:
    """Return, per weight (any shape), the scalar that clips its corrected gradient to norm 1."""
    squares: list[Tensor] = []
    owners: list[int] = []
    for rows, (grads, last) in cut_rows([table.grads, table.column("last_grad")]):
        squares += lists.norm(_correct(grads, last, strength))
        owners += rows
    if squares[0].device.type != "cpu":
        # On a GPU weights are not cut, so sorting replaces index_add_: copying the indices to the
        # device would make the host wait for all queued work.
        ordered = sorted(zip(owners, squares, strict=True), key=lambda pair: pair[0])
        sums = torch.stack([square for _, square in ordered]).square_()
    else:
        # One sum per weight over its pieces, in a fixed order.
        sums = torch.zeros(len(table.weights), dtype=squares[0].dtype)
        sums.index_add_(0, torch.tensor(owners), torch.stack(squares).square_())
    return list(sums.sqrt_().clamp_(min=1).reciprocal_().unbind())

"""MARS (Yuan et al. 2024, arXiv 2411.10438): gradients corrected by how they changed since.

c = g + gamma * beta1 / (1 - beta1) * (g - g of the step before), at most 1 long per tensor
(algorithm 2 and equation 8, the approximate form: no second gradient, so no batch size is needed).
Only what has more than one entry an output is corrected; biases and gains get AdamW at the same
rate with betas 0.9 and 0.95, as in the authors' code. There, convolutions get AdamW too.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from trainer.core.options import option
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.elementwise import apply_adamw, is_vector
from trainer.optimizers._core.param_table import Table, TableOptimizer, cut_rows

VECTOR_BETAS = (0.9, 0.95)


def gamma_field() -> Any:
    """Declare the strength of the correction."""
    text = "How strongly a gradient is corrected by its change; 0 is plain."
    return option(0.025, "Gamma", text, min=0.0, max=1.0)


class Mars(TableOptimizer):
    """What the variants of MARS share: the split, the correction, the copy of the gradient."""

    corrected_states: tuple[str, ...] = ()
    """State of a corrected weight besides `last_grad`."""

    def fresh_state(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """Return zeros; any shape."""
        vector_states = ("exp_avg", "exp_avg_sq")
        names = vector_states if is_vector(weight) else (*self.corrected_states, "last_grad")
        return {name: torch.zeros_like(weight) for name in names}

    def update_table(self, table: Table) -> None:
        """Take one step."""
        vectors, others = _split(table)
        if vectors.weights:
            _update_vectors(vectors)
        if others.weights:
            self.update_corrected(others)

    def update_corrected(self, table: Table) -> None:
        """Change the weights that are no vectors."""
        raise NotImplementedError

    def corrected(self, table: Table) -> Iterator[tuple[list[list[Tensor]], list[Tensor]]]:
        """Yield pieces (weights, gradients, last gradients, states) and their corrected gradients.

        The last gradients are replaced by copies: gradients may be changed in place later.
        """
        strength = _strength(table.group)
        factors = _clip_factors(table, strength)
        columns = [table.weights, table.grads, table.column("last_grad")]
        columns += [table.column(name) for name in self.corrected_states]
        for rows, (weights, grads, last, *states) in cut_rows(columns):
            corrected = _correct(grads, last, strength)
            lists.mul_(corrected, [factors[row] for row in rows])
            table.gate.copy_(last, grads)
            yield [weights, grads, *states], corrected


def _split(table: Table) -> tuple[Table, Table]:
    """Part a table into biases and gains and the rest (any shape)."""
    parts = {
        wanted: Table(table.group, [], [], [], table.step, table.gate) for wanted in (True, False)
    }
    for weight, grad, state in zip(table.weights, table.grads, table.states, strict=True):
        parts[is_vector(weight)].add(weight, grad, state)
    return parts[True], parts[False]


def _update_vectors(table: Table) -> None:
    group = table.group
    for pieces in table.pieces("exp_avg", "exp_avg_sq"):
        apply_adamw(
            pieces,
            lr=group["lr"],
            betas=VECTOR_BETAS,
            eps=group["eps"],
            weight_decay=group["weight_decay"],
            step=table.step,
            gate=table.gate,
        )


def _strength(group: dict[str, Any]) -> float:
    beta1 = group["betas"][0]
    return group["gamma"] * beta1 / (1 - beta1)


def _correct(grads: list[Tensor], last: list[Tensor], strength: float) -> list[Tensor]:
    """Return g + strength * (g - last) for gradients of any shape."""
    corrected = list(lists.mul(grads, 1 + strength))
    lists.add_(corrected, last, alpha=-strength)
    return corrected


def _clip_factors(table: Table, strength: float) -> list[Tensor]:
    """Return for every weight (any shape) the scalar that makes its correction at most 1 long."""
    squares: list[Tensor] = []
    owners: list[int] = []
    for rows, (grads, last) in cut_rows([table.grads, table.column("last_grad")]):
        squares += lists.norm(_correct(grads, last, strength))
        owners += rows
    if squares[0].device.type != "cpu":
        # Weights are whole there. Places sent to a GPU would wait for all that it still has to do.
        ordered = sorted(zip(owners, squares, strict=True), key=lambda pair: pair[0])
        sums = torch.stack([square for _, square in ordered]).square_()
    else:
        # One sum a weight, in the order of its pieces.
        sums = torch.zeros(len(table.weights), dtype=squares[0].dtype)
        sums.index_add_(0, torch.tensor(owners), torch.stack(squares).square_())
    return list(sums.sqrt_().clamp_(min=1).reciprocal_().unbind())

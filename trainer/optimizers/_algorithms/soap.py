"""SOAP (Vyas et al. 2024, arXiv 2409.11321, algorithm 3): Adam in the eigenbasis of Shampoo.

For each matrix it averages G G^T and G^T G, rotates the gradient into their eigenbases, applies an
Adam-like rule there, and rotates the update back. The first step only initialises the bases, as in
the authors' code.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.core.options import option
from trainer.optimizers._core.newton_schulz import as_matrix
from trainer.optimizers._core.param_groups import Group, is_vector
from trainer.optimizers._core.param_table import ParamTable, TableOptimizer
from trainer.optimizers._core.shared_options import (
    beta1_field,
    beta2_field,
    eps_field,
    lr_field,
    weight_decay_field,
)

_SIDES = {"left": 0, "right": 1}


@dataclass(frozen=True)
class SoapOptions:
    """The options of SOAP, with either rule in the eigenbasis."""

    lr: float | None = lr_field("Empty: AdamW's usual rate for fine-tuning.")
    refresh_every: int = option(
        10, "Refresh (steps)", "Steps between updates of the bases; higher is faster.", min=1
    )
    # The authors' 10,000 would include embeddings of 8,194 audio codes and 6,681 text tokens, whose
    # factor and basis take up to half a gigabyte.
    max_size: int = option(
        2048,
        "Largest side",
        "Matrix sides larger than this are not rotated.",
        min=1,
        max=16384,
        advanced=True,
    )
    beta1: float = beta1_field(0.95)
    beta2: float = beta2_field(0.95)
    eps: float = eps_field()
    weight_decay: float = weight_decay_field()


class Soap(TableOptimizer):
    """Base of SOAP and SOAP with AdEMAMix; a subclass defines the rule in the eigenbasis."""

    mean_states: tuple[str, ...] = ("exp_avg",)
    """State names of the rotated first moments, which must follow when the bases change."""

    def fresh_state(self, weight: Tensor, group: Group) -> dict[str, Tensor]:
        """Return zero moments for a weight of any shape; the first gradient sets the bases."""
        names = (*self.mean_states, "exp_avg_sq")
        if is_vector(weight):
            return {name: torch.zeros_like(weight) for name in names}
        matrix = as_matrix(weight)
        state = {name: torch.zeros_like(matrix) for name in names}
        for side, size in zip(_SIDES, matrix.shape, strict=True):
            if size <= group["max_size"]:
                state[side] = matrix.new_zeros(size, size)
        return state

    def update_table(self, table: ParamTable) -> None:
        """Update the weights and states of a table once."""
        for weight, grad, state in zip(table.weights, table.grads, table.states, strict=True):
            with table.gate.around(weight, state):
                self._update_weight(weight, table.gate.without_nan(grad), state, table)

    def _update_weight(
        self, weight: Tensor, grad: Tensor, state: dict[str, Tensor], table: ParamTable
    ) -> None:
        """Update a weight (any shape) with its gradient."""
        group, rule_step = table.group, table.step - 1
        matrix = grad if is_vector(weight) else as_matrix(grad)
        if rule_step == 0:
            _start_bases(state, matrix, group)
            return
        rotated = self.step_in_basis(_rotate(matrix, state), state, group, rule_step)
        weight.add_(_rotate_back(rotated, state).view_as(weight), alpha=-group["lr"])
        # Weight decay after the update and new bases after both, as in the authors' code.
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        self._follow(state, matrix, group, rule_step)

    def step_in_basis(
        self, grad: Tensor, state: dict[str, Tensor], group: Group, step: int
    ) -> Tensor:
        """Update the moments with a rotated gradient (any shape); return the rotated update."""
        raise NotImplementedError

    def _follow(self, state: dict[str, Tensor], grad: Tensor, group: Group, step: int) -> None:
        """Update the Shampoo averages of a matrix (any 2-D shape), and its bases when due."""
        _average_products(state, grad, group)
        if step % group["refresh_every"] == 0 and not _SIDES.keys().isdisjoint(state):
            # First moments are stored rotated: out of the old bases here, into the new ones below.
            # Second moments cannot be rotated, only reordered, as in the authors' code.
            means = {name: _rotate_back(state[name], state) for name in self.mean_states}
            _refresh_bases(state)
            for name, mean in means.items():
                state[name] = _rotate(mean, state)


def _start_bases(state: dict[str, Tensor], grad: Tensor, group: Group) -> None:
    """Set the bases to the eigenvectors of the first gradient's products, largest first."""
    _average_products(state, grad, group)
    for side in _SIDES:
        if side in state:
            product = state[side]
            # The nudge of the diagonal is that of the authors' code.
            nudge = 1e-30 * torch.eye(len(product), dtype=product.dtype, device=product.device)
            state[f"{side}_basis"] = torch.linalg.eigh(product + nudge).eigenvectors.flip(1)


def _average_products(state: dict[str, Tensor], grad: Tensor, group: Group) -> None:
    share = 1 - group["betas"][1]
    if "left" in state:
        state["left"].lerp_(grad @ grad.mT, share)
    if "right" in state:
        state["right"].lerp_(grad.mT @ grad, share)


def _refresh_bases(state: dict[str, Tensor]) -> None:
    """Refresh the bases by one power iteration and a QR decomposition (algorithm 4 of the paper).

    Columns are first sorted by their current eigenvalue estimates, and second moments with them.
    """
    for side, axis in _SIDES.items():
        if side not in state:
            continue
        product, basis = state[side], state[f"{side}_basis"]
        estimates = (basis * (product @ basis)).sum(0)
        order = torch.argsort(estimates, descending=True)
        state["exp_avg_sq"] = state["exp_avg_sq"].index_select(axis, order)
        state[f"{side}_basis"] = torch.linalg.qr(product @ basis[:, order]).Q


def _rotate(matrix: Tensor, state: dict[str, Tensor]) -> Tensor:
    """Rotate a matrix (any 2-D shape) into the eigenbases."""
    if "left_basis" in state:
        matrix = state["left_basis"].mT @ matrix
    return matrix @ state["right_basis"] if "right_basis" in state else matrix


def _rotate_back(matrix: Tensor, state: dict[str, Tensor]) -> Tensor:
    """Rotate a matrix (any 2-D shape) back out of the eigenbases."""
    if "left_basis" in state:
        matrix = state["left_basis"] @ matrix
    return matrix @ state["right_basis"].mT if "right_basis" in state else matrix

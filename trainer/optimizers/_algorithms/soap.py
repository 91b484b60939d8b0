"""SOAP (Vyas et al. 2024, arXiv 2409.11321, algorithm 3): an Adam in the eigenbasis of Shampoo.

Per matrix it keeps averages of G G^T and G^T G, rotates the gradient into their eigenbases, lets a
rule of the Adam kind work there, and rotates the step back. The first step only starts them.
"""

from typing import Any

import torch
from torch import Tensor

from trainer.optimizers._core.elementwise import is_vector
from trainer.optimizers._core.newton_schulz import as_matrix
from trainer.optimizers._core.param_table import Table, TableOptimizer

_SIDES = {"left": 0, "right": 1}


class Soap(TableOptimizer):
    """What SOAP and its mix with AdEMAMix share; a subclass brings the rule in the eigenbasis."""

    mean_states: tuple[str, ...] = ("exp_avg",)
    """Averages of the rotated gradient; they turn with the bases."""

    def fresh_state(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """Return zero averages; bases follow with the first gradient. Any shape."""
        names = (*self.mean_states, "exp_avg_sq")
        if is_vector(weight):
            return {name: torch.zeros_like(weight) for name in names}
        matrix = as_matrix(weight)
        state = {name: torch.zeros_like(matrix) for name in names}
        for side, size in zip(_SIDES, matrix.shape, strict=True):
            if size <= group["max_size"]:
                state[side] = matrix.new_zeros(size, size)
        return state

    def update_table(self, table: Table) -> None:
        """Take one step."""
        for weight, grad, state in zip(table.weights, table.grads, table.states, strict=True):
            with table.gate.around(weight, state):
                self._update_weight(weight, table.gate.without_nan(grad), state, table)

    def _update_weight(
        self, weight: Tensor, grad: Tensor, state: dict[str, Any], table: Table
    ) -> None:
        """Change a weight by its gradient (any shape)."""
        group, rule_step = table.group, table.step - 1
        matrix = grad if is_vector(weight) else as_matrix(grad)
        if rule_step == 0:
            _start_bases(state, matrix, group)
            return
        rotated = self.step_in_basis(_rotate(matrix, state), state, group, rule_step)
        weight.add_(_rotate_back(rotated, state).view_as(weight), alpha=-group["lr"])
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        self._follow(state, matrix, group, rule_step)

    def step_in_basis(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], step: int
    ) -> Tensor:
        """Change the averages with a rotated gradient (any shape) and return the rotated update."""
        raise NotImplementedError

    def _follow(
        self, state: dict[str, Any], grad: Tensor, group: dict[str, Any], step: int
    ) -> None:
        """Let the averages of one matrix (any 2-D shape) follow, and at times its bases."""
        _average_products(state, grad, group)
        if step % group["refresh_every"] == 0 and not _SIDES.keys().isdisjoint(state):
            means = {name: _rotate_back(state[name], state) for name in self.mean_states}
            _refresh_bases(state)
            for name, mean in means.items():
                state[name] = _rotate(mean, state)


def _start_bases(state: dict[str, Any], grad: Tensor, group: dict[str, Any]) -> None:
    """Set the eigenbases of the first gradient (any 2-D shape), largest eigenvalue first."""
    _average_products(state, grad, group)
    for side in _SIDES:
        if side in state:
            product = state[side]
            nudge = 1e-30 * torch.eye(len(product), dtype=product.dtype, device=product.device)
            state[f"{side}_basis"] = torch.linalg.eigh(product + nudge).eigenvectors.flip(1)


def _average_products(state: dict[str, Any], grad: Tensor, group: dict[str, Any]) -> None:
    share = 1 - group["betas"][1]
    if "left" in state:
        state["left"].lerp_(grad @ grad.mT, share)
    if "right" in state:
        state["right"].lerp_(grad.mT @ grad, share)


def _refresh_bases(state: dict[str, Any]) -> None:
    """Take one power step and a QR decomposition, ordered by the eigenvalues as they are now."""
    for side, axis in _SIDES.items():
        if side not in state:
            continue
        product, basis = state[side], state[f"{side}_basis"]
        estimates = (basis * (product @ basis)).sum(0)
        order = torch.argsort(estimates, descending=True)
        state["exp_avg_sq"] = state["exp_avg_sq"].index_select(axis, order)
        state[f"{side}_basis"] = torch.linalg.qr(product @ basis[:, order]).Q


def _rotate(matrix: Tensor, state: dict[str, Any]) -> Tensor:
    """Turn a matrix (any 2-D shape) into the eigenbases."""
    if "left_basis" in state:
        matrix = state["left_basis"].mT @ matrix
    return matrix @ state["right_basis"] if "right_basis" in state else matrix


def _rotate_back(matrix: Tensor, state: dict[str, Any]) -> Tensor:
    """Turn a matrix (any 2-D shape) out of the eigenbases."""
    if "left_basis" in state:
        matrix = state["left_basis"] @ matrix
    return matrix @ state["right_basis"].mT if "right_basis" in state else matrix

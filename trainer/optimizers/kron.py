"""Kron, or PSGD with Kronecker factors (Li 2015, arXiv 1512.04202; Li 2024, arXiv 2402.11858).

For each matrix it fits two triangular factors that whiten the preconditioned gradient. The factors
are refitted at every step at first and less and less often later. What the papers leave open is as
in the package kron-torch, by one of their authors.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._core.newton_schulz import as_matrix
from trainer.optimizers._core.param_groups import Group, is_vector
from trainer.optimizers._core.param_table import ParamTable, TableOptimizer
from trainer.optimizers._core.shared_options import beta1_field, lr_field, weight_decay_field

_LARGEST_UPDATE = 1.1
"""Limit on the root mean square of an update, as in kron-torch."""
_BALANCE_EVERY = 100
"""Refits between two balancings: the mean interval of kron-torch, which balances 1 % at random."""


@dataclass(frozen=True)
class Options:
    """The options of Kron."""

    lr: float | None = lr_field(
        "Empty: the model family's default. The authors recommend a third of AdamW's rate."
    )
    beta1: float = beta1_field()
    # 0.1, 500 and 0.03 are those of kron-torch (500 in its newer schedule, 250 in an older one).
    factor_lr: float = option(
        0.1,
        "Rate of the factors",
        "Step size at which the factors are fitted.",
        min=1e-4,
        max=1.0,
        advanced=True,
    )
    refit_steps: int = option(
        500, "Refit (steps)", "Refit at every step up to here, then less often.", min=0
    )
    refit_share: float = option(
        0.03,
        "Refit share",
        "Share of steps with a refit, late in a run.",
        min=0.001,
        max=1.0,
        advanced=True,
    )
    # The limit in soap.py, for the same reason.
    max_size: int = option(
        2048,
        "Largest side",
        "Matrix sides larger than this get a diagonal factor.",
        min=1,
        max=16384,
        advanced=True,
    )
    weight_decay: float = weight_decay_field()


class Kron(TableOptimizer):
    """Kron; `momentum_buffer` as in kron-torch, the factors are `left` and `right`."""

    # "Start with a learning rate around 3x smaller than adam's" (README of kron-torch).
    default_lr = 3e-5

    def __init__(self, param_groups: list[Group], defaults: Group) -> None:
        counts = {"count": 0, "since_refit": 0, "num_refits": 0}
        super().__init__(param_groups, defaults | counts)

    def fresh_state(self, weight: Tensor, group: Group) -> dict[str, Tensor]:
        """Return zero momentum and identity factors for a weight of any shape."""
        matrix = weight.reshape(-1) if is_vector(weight) else as_matrix(weight)
        state = {"momentum_buffer": torch.zeros_like(matrix)}
        for name, size in zip(("left", "right"), matrix.shape, strict=False):
            is_diagonal = matrix.dim() < 2 or size > group["max_size"] or size == 1
            state[name] = matrix.new_ones(size) if is_diagonal else _eye(matrix, size)
        return state

    def update(self, tables: list[ParamTable]) -> None:
        """Update all weights; factors of all weights are refitted at the same steps."""
        first = self.param_groups[0]
        due = first["since_refit"] + 1 >= 1 / refit_share(first["count"], first)
        for group in self.param_groups:
            group["count"] += 1
            group["since_refit"] = 0 if due else group["since_refit"] + 1
            group["num_refits"] += due
        balances = due and first["num_refits"] % _BALANCE_EVERY == 0
        for table in tables:
            rows = zip(table.weights, table.grads, table.states, strict=True)
            for number, (weight, grad, state) in enumerate(rows):
                # Differs per step and weight, for up to 2**20 weights a table.
                noise_seed = (first["count"] << 20) + number
                with table.gate.around(weight, state):
                    mean = _mean(state, table.gate.without_nan(grad), table)
                    # A single factor has nothing to be balanced against.
                    if balances and "right" in state:
                        _balance(state)
                    if due:
                        _refit(state, mean, table.group["factor_lr"], noise_seed)
                    _apply(weight, _precondition(state, mean), table.group)


def _eye(like: Tensor, size: int) -> Tensor:
    """Return an identity matrix (size, size) with the dtype and device of `like`."""
    return torch.eye(size, dtype=like.dtype, device=like.device)


def refit_share(count: int, group: Group) -> float:
    """Return the share of steps with a refit: 1 at first, then falling exponentially.

    The rate of 0.001 per step is that of kron-torch.
    """
    share = math.exp(-0.001 * max(0, count - group["refit_steps"]))
    return max(share, group["refit_share"])


def draw_noise(like: Tensor, seed: int) -> Tensor:
    """Return normal noise (any shape) that depends only on the seed, for exact resumes."""
    generator = torch.Generator(like.device).manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _mean(state: dict[str, Tensor], grad: Tensor, table: ParamTable) -> Tensor:
    """Update the momentum of a gradient (any shape) and return it with bias correction."""
    beta1 = table.group["betas"][0]
    mean = state["momentum_buffer"]
    mean.lerp_(grad.reshape(mean.shape), 1 - beta1)
    return mean / (1 - beta1**table.step)


def _balance(state: dict[str, Tensor]) -> None:
    """Scale both factors to the same largest entry, without changing their product."""
    sizes = [state[name].abs().max() for name in ("left", "right")]
    middle = (sizes[0] * sizes[1]).sqrt()
    for name, size in zip(("left", "right"), sizes, strict=True):
        state[name].mul_(middle / size)


def _refit(state: dict[str, Tensor], mean: Tensor, rate: float, seed: int) -> None:
    """Update the factors so that they whiten the momentum (any shape).

    With A = left G right^T and B = left^-T V right^-1 for noise V, the gradient of a factor is
    A A^T - B B^T.
    """
    noise = draw_noise(mean, seed)
    # A little of the noise, as in kron-torch, so that momentum of low rank stays invertible.
    spread = torch.finfo(torch.float32).eps ** 0.5
    mean = torch.add(mean, noise * mean.abs().mean(), alpha=spread)
    ahead, behind = _times_left(state["left"], mean), _divide_left(state["left"], noise)
    if "right" in state:
        ahead = _times_left(state["right"], ahead.mT).mT
        behind = _divide_left(state["right"], behind.mT).mT
        _follow(state["right"], ahead.mT, behind.mT, rate)
    _follow(state["left"], ahead, behind, rate)


def _follow(factor: Tensor, ahead: Tensor, behind: Tensor, rate: float) -> None:
    """Update a diagonal or triangular factor from A and B, with the factor's side first."""
    tiny = torch.finfo(factor.dtype).tiny
    if factor.dim() == 1:
        first, second = (side.square().reshape(len(factor), -1).sum(1) for side in (ahead, behind))
        size = (first + second).max().clamp(min=tiny)
        factor.sub_((first - second) * factor * (rate / size))
        return
    first, second = ahead @ ahead.mT, behind @ behind.mT
    # The norm makes the step size independent of the scale of the gradients.
    size = _largest_stretch(first + second).clamp(min=tiny)
    factor.sub_(torch.triu((first - second) * (rate / size)) @ factor)


def _times_left(factor: Tensor, matrix: Tensor) -> Tensor:
    """Return factor @ matrix (any shape); a 1-D factor is a diagonal."""
    if factor.dim() == 2:
        return factor @ matrix
    return factor.view(-1, *[1] * (matrix.dim() - 1)) * matrix


def _divide_left(factor: Tensor, matrix: Tensor) -> Tensor:
    """Return factor^-T @ matrix (any shape); a 1-D factor is a diagonal."""
    if factor.dim() == 2:
        return torch.linalg.solve_triangular(factor.mT, matrix, upper=False)
    return matrix / factor.view(-1, *[1] * (matrix.dim() - 1))


def _largest_stretch(matrix: Tensor) -> Tensor:
    """Return a lower bound (a scalar) of a symmetric matrix's norm by one power iteration."""
    # Scaled by the largest entry first, so that squares neither overflow nor vanish.
    largest = matrix.abs().max()
    tiny = torch.finfo(matrix.dtype).tiny
    scaled = matrix / largest.clamp(min=tiny)
    column = scaled.index_select(1, scaled.square().sum(0).argmax().view(1)).flatten()
    direction = column @ scaled
    direction = direction / direction.norm().clamp(min=tiny)
    return (scaled @ direction).norm() * largest


def _precondition(state: dict[str, Tensor], mean: Tensor) -> Tensor:
    """Return the momentum (any shape) multiplied by Q^T Q for both factors Q."""
    for name in ("left", "right"):
        if name in state:
            factor = state[name]
            transposed = factor.mT if factor.dim() == 2 else factor
            mean = _times_left(transposed, _times_left(factor, mean))
            mean = mean.mT if mean.dim() == 2 else mean
    return mean


def _apply(weight: Tensor, update: Tensor, group: Group) -> None:
    """Limit the size of an update (any shape) and apply it."""
    # 1e-12 avoids a division by zero.
    size = update.square().mean().sqrt().add(1e-12)
    update = update * (_LARGEST_UPDATE / size).clamp(max=1)
    weight.mul_(1 - group["lr"] * group["weight_decay"])
    weight.add_(update.reshape(weight.shape), alpha=-group["lr"])


SPEC = OptimizerSpec(
    name="kron",
    label="Kron (PSGD)",
    summary="Fits a preconditioner for every matrix; slow at small batch sizes.",
    paper="https://arxiv.org/abs/2402.11858",
    options=Options,
    build=Kron.build,
    state_bytes=12.0,  # momentum and two triangular factors of a square matrix
    default_lr=Kron.default_lr,
    rate_follows="adamw",
    experimental=True,
    warning=(
        "There are no published results for fine-tuning. It refits at each of the first 500 steps, "
        "and the matrix work doesn't shrink with the batch size."
    ),
)

"""Prodigy with Schedule-Free averaging: no learning rate and no schedule to choose; for research.

Prodigy's step (arXiv 2306.06101, algorithm 4, without the first moment) moves the fast point z of
Schedule-Free (arXiv 2405.15682, algorithm 1), whose average is weighted by the squared rate d * lr.
No paper studies the combination; it is used for fine-tuning image models.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.prodigy import (
    ESTIMATES,
    EstimatingOptimizer,
    Parts,
    Scalars,
    adapt,
    effective_lr,
    estimate,
    scalars_of,
)
from trainer.optimizers._algorithms.schedule_free import ScheduleFree, set_mode
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.param_groups import Group
from trainer.optimizers._core.param_table import ParamTable
from trainer.optimizers._core.shared_options import beta2_field, eps_field, weight_decay_field


@dataclass(frozen=True)
class Options:
    """The options of Prodigy with Schedule-Free averaging."""

    lr: float | None = option(
        None,
        "Learning rate",
        "Multiplies the rate that is found. Empty means 1, which is nearly always right.",
        min=1e-3,
        max=10.0,
    )
    d0: float = option(
        1e-6, "First estimate (d0)", "The initial rate.", min=1e-12, max=1.0, advanced=True
    )
    d_coef: float = option(
        1.0, "Growth coefficient", "Multiplies the rate that is found.", min=0.01, max=100.0
    )
    beta1: float = option(
        0.9,
        "Beta 1",
        "How close to the average gradients are computed.",
        min=0.01,
        max=0.9999,
        advanced=True,
    )
    # As in the package prodigy-plus-schedule-free.
    beta2: float = beta2_field(0.99)
    eps: float = eps_field()
    # Off by default, as in both packages: with an unknown rate its strength is unknown, too.
    weight_decay: float = weight_decay_field(0.0)


class ProdigyScheduleFree(EstimatingOptimizer, ScheduleFree):
    """Prodigy's step on Schedule-Free's fast point, averaged with squared rates as weights."""

    default_lr = 1.0

    estimates = (*ESTIMATES, "weight_sum")

    def fresh_state(self, weight: Tensor, group: Group) -> dict[str, Tensor]:
        """Return the fast point, the initial weights and zero sums for a weight of any shape."""
        return {
            "exp_avg_sq": torch.zeros_like(weight),
            "z": weight.clone(),
            "s": torch.zeros_like(weight),
            "p0": weight.clone(),
        }

    def update(self, tables: list[ParamTable]) -> None:
        """Update the weights with the current d, then update d."""
        self.check_mode()
        group, lr = self.param_groups[0], self.common_rate()
        if not tables or lr == 0:
            return
        scalars = scalars_of(group, lr)
        # Schedule-Free weights steps by the squared rate (weight_lr_power 2), so the tiny first
        # rates of Prodigy hardly enter the average.
        weight = scalars.rate.square()
        gate, total = tables[0].gate, group["weight_sum"] + weight
        share = weight / total
        group["weight_sum"].copy_(gate.pick(total, group["weight_sum"]))
        parts: list[Parts] = []
        for table in tables:
            for pieces in table.pieces("exp_avg_sq", "z", "s", "p0"):
                weights, grads, *_, sums, firsts = pieces
                # Before the weights move: the estimate needs the point of the gradients.
                parts.append(estimate([weights, grads, sums, firsts], scalars, gate))
                _average(pieces[:4], scalars, share, table)
        adapt(group, scalars, parts, gate)
        self.end_step()


def _average(
    pieces: list[list[Tensor]], scalars: Scalars, share: Tensor, table: ParamTable
) -> None:
    """Update the fast points, and interpolate the weights (pieces, any shape) by `share`."""
    weights, grads, squares, fast = pieces
    gate = table.gate
    dtype = weights[0].dtype
    beta1, beta2, _ = scalars.betas
    d, rate, share = (scalar.to(dtype) for scalar in (scalars.d, scalars.rate, share))
    updates = list(lists.scale(grads, d))
    gate.mean_squares_(squares, updates, beta2)
    roots = lists.sqrt(squares)
    lists.shift_(roots, d * scalars.eps)
    lists.div_(updates, roots)
    lists.add_(updates, weights, alpha=table.group["weight_decay"])
    lists.scale_(updates, rate)
    ways = list(lists.sub(fast, weights))
    lists.scale_(ways, share)
    gate.move_(weights, ways, -1.0)
    gate.move_(fast, updates, 1.0)
    lists.scale_(updates, beta1 * (1 - share) - 1)
    gate.move_(weights, updates, -1.0)


SPEC = OptimizerSpec(
    name="prodigy_schedule_free",
    label="Prodigy + Schedule-Free",
    summary="No learning rate and no schedule to choose.",
    paper="https://arxiv.org/abs/2405.15682",
    options=Options,
    build=ProdigyScheduleFree.build,
    state_bytes=16.0,  # second moment, z, s and p0 in float32
    default_lr=ProdigyScheduleFree.default_lr,
    schedules=("constant",),
    set_mode=set_mode,
    effective_lr=effective_lr,
    experimental=True,
    warning=(
        "No paper studies this combination. Leave gradient clipping and weight averaging (EMA) "
        "off, and watch the rate that is found."
    ),
)

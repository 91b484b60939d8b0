"""MARS-AdamW (Yuan et al. 2024, arXiv 2411.10438, algorithm 3): AdamW on corrected gradients."""

from dataclasses import dataclass
from typing import Any

import torch

from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.mars import Mars, gamma_field
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.elementwise import (
    adam_denominators,
    apply_adamw,
    apply_updates,
)
from trainer.optimizers._core.param_table import ParamTable
from trainer.optimizers._core.shared_options import (
    beta1_field,
    beta2_field,
    cautious_field,
    eps_field,
    lr_field,
    weight_decay_field,
)


@dataclass(frozen=True)
class Options:
    """The options of MARS-AdamW."""

    lr: float | None = lr_field("Empty: the model family's default. One rate for all weights.")
    # Gamma and both betas are those of the authors' language-model runs.
    gamma: float = gamma_field()
    beta1: float = beta1_field(0.95)
    beta2: float = beta2_field(0.99)
    eps: float = eps_field()
    weight_decay: float = weight_decay_field()
    cautious: bool = cautious_field()


class MarsAdamW(Mars):
    """MARS-AdamW; state keys as in the authors' code."""

    corrected_states = ("exp_avg", "exp_avg_sq")

    def update_corrected(self, table: ParamTable) -> None:
        """Update the weights that are not vectors."""
        group = table.group
        if group["cautious"]:
            self._update_cautiously(table)
            return
        for (weights, _, means, squares), corrected in self.corrected(table):
            apply_adamw(
                [weights, corrected, means, squares],
                lr=group["lr"],
                betas=group["betas"],
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                step=table.step,
                gate=table.gate,
            )

    def _update_cautiously(self, table: ParamTable) -> None:
        group, (beta1, beta2) = table.group, table.group["betas"]
        means, squares = table.column("exp_avg"), table.column("exp_avg_sq")
        # All pieces first, because the mask of the update needs whole tensors.
        for (_, _, mean, square), corrected in self.corrected(table):
            table.gate.lerp_(mean, corrected, 1 - beta1)
            table.gate.mean_squares_(square, corrected, beta2)
        denominators = adam_denominators(squares, group["eps"], beta2, table.step)
        updates = list(lists.div(means, denominators))
        lists.div_(updates, 1 - beta1**table.step)
        apply_updates(table, updates, lr=group["lr"], cautious_of=table.grads)


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return MARS-AdamW."""
    defaults = {
        "lr": options.lr or SPEC.default_lr,
        "betas": (options.beta1, options.beta2),
        "gamma": options.gamma,
        "eps": options.eps,
        "cautious": options.cautious,
    }
    return MarsAdamW(param_groups, defaults)


SPEC = OptimizerSpec(
    name="mars_adamw",
    label="MARS-AdamW",
    summary="AdamW on variance-reduced gradients; half again as much memory.",
    paper="https://arxiv.org/abs/2411.10438",
    options=Options,
    build=build,
    state_bytes=12.0,  # two moments and the last gradient in float32
    default_lr=1e-4,  # AdamW's, because the correction hardly changes step sizes
    in_parts=True,
    rate_follows="adamw",
    warning="Only shown to help in pre-training language models.",
)

"""MARS-Lion (Yuan et al. 2024, arXiv 2411.10438, algorithm 4): Lion on corrected gradients."""

from dataclasses import dataclass
from typing import Any

import torch

from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.mars import Mars, gamma_field
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.param_table import ParamTable
from trainer.optimizers._core.shared_options import (
    beta1_field,
    eps_field,
    lr_field,
    weight_decay_field,
)


@dataclass(frozen=True)
class Options:
    """The options of MARS-Lion."""

    lr: float | None = lr_field("Every weight moves by exactly this much. A fifth of AdamW's rate.")
    gamma: float = gamma_field()
    beta1: float = beta1_field(0.95)
    eps: float = eps_field()
    # Lion's: arXiv 2302.06675, section 5.
    weight_decay: float = weight_decay_field(0.05, hint=" Five times AdamW's.")


class MarsLion(Mars):
    """MARS-Lion; state keys as in the authors' code, without the second moment it never reads."""

    corrected_states = ("exp_avg",)

    def update_corrected(self, table: ParamTable) -> None:
        """Update the weights that are not vectors."""
        group = table.group
        for (weights, _, means), corrected in self.corrected(table):
            table.gate.lerp_(means, corrected, 1 - group["betas"][0])
            keep = 1 - group["lr"] * group["weight_decay"]
            table.gate.move_(weights, list(lists.sign(means)), group["lr"], keep=keep)


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return MARS-Lion."""
    defaults = {
        "lr": options.lr or SPEC.default_lr,
        "betas": (options.beta1, options.beta1),
        "gamma": options.gamma,
        "eps": options.eps,
    }
    return MarsLion(param_groups, defaults)


SPEC = OptimizerSpec(
    name="mars_lion",
    label="MARS-Lion",
    summary="Lion on variance-reduced gradients, with AdamW's memory.",
    paper="https://arxiv.org/abs/2411.10438",
    options=Options,
    build=build,
    state_bytes=8.0,  # momentum and the last gradient in float32
    default_lr=2e-5,  # Lion's: arXiv 2302.06675, section 5
    in_parts=True,
    rate_follows="adamw",
    warning="The authors tuned only MARS-AdamW. Biases and gains get AdamW at this low rate.",
)

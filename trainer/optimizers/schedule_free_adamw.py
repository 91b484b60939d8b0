"""Schedule-Free AdamW (Defazio et al. 2024, arXiv 2405.15682, algorithm 1): averages, not decay.

Gradients are taken at y, between the fast weights z and their average x; x is what one keeps.
"""

from typing import Any

import torch

from trainer.optimizers._schedule_free import ScheduleFreeAdamW
from trainer.optimizers._schedule_free_options import ScheduleFreeOptions, set_mode
from trainer.specs import OptimizerSpec


class Options(ScheduleFreeOptions):
    """The options of Schedule-Free AdamW."""


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Schedule-Free AdamW, ready to train."""
    defaults = {
        "lr": options.lr or SPEC.default_lr,
        "betas": (options.beta1, options.beta2),
        "eps": options.eps,
        "warmup_steps": options.warmup_steps,
        "r": 0.0,
        "weight_lr_power": 2.0,
        "k": 0,
        "train_mode": True,
        "weight_sum": 0.0,
        "lr_max": -1.0,
        "scheduled_lr": 0.0,
    }
    return ScheduleFreeAdamW(param_groups, defaults)


SPEC = OptimizerSpec(
    name="schedule_free_adamw",
    label="Schedule-Free AdamW",
    summary="Averages the weights instead of lowering the rate: good whenever you stop.",
    paper="https://arxiv.org/abs/2405.15682",
    options=Options,
    build=build,
    state_bytes=8.0,
    default_lr=1e-3,
    schedules=("constant",),
    set_mode=set_mode,
)

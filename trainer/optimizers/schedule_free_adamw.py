"""Schedule-Free AdamW (Defazio et al. 2024, arXiv 2405.15682): averaging replaces rate decay.

Gradients are computed at y, between the fast weights z and their average x; x is the result.
"""

from dataclasses import dataclass
from typing import Any

import torch

from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.schedule_free import RULE, ScheduleFreeAdamW
from trainer.optimizers._algorithms.schedule_free_options import ScheduleFreeOptions, set_mode
from trainer.optimizers._core.native import compiled_field


@dataclass(frozen=True)
class Options(ScheduleFreeOptions):
    """The options of Schedule-Free AdamW."""

    compiled: bool = compiled_field()


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Schedule-Free AdamW, ready to train.

    Raises:
        ConfigError: the rule cannot be compiled on this machine.
    """
    if options.compiled:
        RULE.check(device)
    defaults = {
        "lr": options.lr or SPEC.default_lr,
        "betas": (options.beta1, options.beta2),
        "eps": options.eps,
        "warmup_steps": options.warmup_steps,
        # The defaults of the package schedulefree: steps weigh by the squared learning rate alone.
        "r": 0.0,
        "weight_lr_power": 2.0,
        "k": 0,
        "train_mode": True,
        "weight_sum": 0.0,
        "lr_max": -1.0,
        "scheduled_lr": 0.0,
        "compiled": options.compiled,
    }
    return ScheduleFreeAdamW(param_groups, defaults)


SPEC = OptimizerSpec(
    name="schedule_free_adamw",
    label="Schedule-Free AdamW",
    summary="Averages the weights instead of lowering the rate, so you can stop at any time.",
    paper="https://arxiv.org/abs/2405.15682",
    options=Options,
    build=build,
    state_bytes=8.0,  # z and the second moment in float32
    default_lr=1e-3,  # 10 times AdamW's default; the authors' README says 1 to 10 times
    schedules=("constant",),
    set_mode=set_mode,
)

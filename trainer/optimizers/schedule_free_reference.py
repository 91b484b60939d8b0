"""Schedule-Free AdamW (Defazio et al. 2024, arXiv 2405.15682, algorithm 1), the authors' package.

Gradients are computed at y, between the fast weights z and their average x; x is the result.
"""

from typing import Any

import torch

from trainer.core.errors import MissingDependency
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.schedule_free_options import ScheduleFreeOptions, set_mode


class Options(ScheduleFreeOptions):
    """The options of the authors' Schedule-Free AdamW."""


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Schedule-Free AdamW, ready to train.

    Raises:
        MissingDependency: schedulefree is not installed.
    """
    try:
        from schedulefree import AdamWScheduleFree
    except ImportError:
        raise MissingDependency("schedulefree", "Schedule-Free AdamW (reference)") from None
    optimizer = AdamWScheduleFree(
        param_groups,
        lr=options.lr or SPEC.default_lr,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        warmup_steps=options.warmup_steps,
    )
    # The package starts in evaluation mode, in which it refuses to step.
    optimizer.train()
    return optimizer


SPEC = OptimizerSpec(
    name="schedule_free_reference",
    label="Schedule-Free AdamW (reference)",
    summary="The authors' code, for comparison; slower, with several passes over memory per step.",
    paper="https://arxiv.org/abs/2405.15682",
    options=Options,
    build=build,
    state_bytes=8.0,  # z and the second moment in float32
    default_lr=1e-3,  # as in schedule_free_adamw.py
    rate_follows="schedule_free_adamw",
    schedules=("constant",),
    set_mode=set_mode,
)

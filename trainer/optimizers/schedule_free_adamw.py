"""Schedule-Free AdamW (Defazio et al. 2024, arXiv 2405.15682): averaging replaces rate decay.

Gradients are computed at y, between the fast weights z and their average x; x is the result.
"""

from dataclasses import dataclass

import torch

from trainer.core.errors import MissingDependency
from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.schedule_free import ScheduleFreeAdamW, set_mode
from trainer.optimizers._core.param_groups import Group
from trainer.optimizers._core.shared_options import (
    beta2_field,
    compiled_field,
    eps_field,
    implementation_field,
    weight_decay_field,
)


@dataclass(frozen=True)
class Options:
    """The options of Schedule-Free AdamW, in either implementation."""

    # Equal results, and never slower in a whole step: docs/benchmarks.md, "Two implementations".
    implementation: str = implementation_field(
        "timbre: Timbre's own code, which is faster. package: the authors' schedulefree. Both "
        "compute the same, except for rounding."
    )
    lr: float | None = option(
        None,
        "Learning rate",
        "Empty: the model family's default. Usually 1 to 10 times AdamW's; it stays constant.",
        min=1e-9,
        max=1.0,
    )
    # Chosen by hand: 5 % of 1,000 steps. The package's default is 0, but its README advises some.
    warmup_steps: int = option(
        50,
        "Warm-up (steps)",
        "Steps until the full rate, about 5 % of the run; they count less in the average.",
        min=0,
    )
    # Above 0, because x is recovered from y and z by dividing by beta 1.
    beta1: float = option(
        0.9,
        "Beta 1",
        "How close to the average gradients are computed; 0.95 to 0.98 for long runs.",
        min=0.01,
        max=0.9999,
        advanced=True,
    )
    beta2: float = beta2_field()
    eps: float = eps_field()
    # AdamW's default; the package's is 0. Decay acts at y, as in the package.
    weight_decay: float = weight_decay_field()
    compiled: bool = compiled_field()


def build(
    param_groups: list[Group], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Schedule-Free AdamW, ready to train.

    Raises:
        MissingDependency: the package was chosen and is not installed.
    """
    defaults = {
        "lr": options.lr or SPEC.default_lr,
        "betas": (options.beta1, options.beta2),
        "eps": options.eps,
        "warmup_steps": options.warmup_steps,
    }
    if options.implementation == "timbre":
        return ScheduleFreeAdamW(param_groups, defaults)
    try:
        from schedulefree import AdamWScheduleFree
    except ImportError:
        raise MissingDependency("schedulefree", "Schedule-Free AdamW from the package") from None
    optimizer = AdamWScheduleFree(param_groups, **defaults)
    # The package starts in evaluation mode, in which it refuses to step.
    optimizer.train()
    return optimizer


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

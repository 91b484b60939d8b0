"""Prodigy (Mishchenko & Defazio 2024, arXiv 2306.06101, algorithm 4): finds its own step size.

d estimates the distance to the solution and only grows during training; the applied rate is d * lr.
"""

from dataclasses import dataclass
from typing import Any

import torch

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.prodigy import RULE, Prodigy, read_estimate
from trainer.optimizers._algorithms.prodigy_options import ProdigyOptions, check_rates
from trainer.optimizers._core.native import compiled_field


@dataclass(frozen=True)
class Options(ProdigyOptions):
    """The options of Prodigy."""

    slice_p: int = option(
        1,
        "Look at every n-th entry",
        "11 estimates the rate from every 11th entry, which halves the memory; the rate differs "
        "slightly (by 11 % in one test).",
        min=1,
        max=1000,
        advanced=True,
    )
    compiled: bool = compiled_field()


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Prodigy.

    Raises:
        ConfigError: the groups have different learning rates, or the rule cannot be compiled on
            this machine.
    """
    lr = options.lr or SPEC.default_lr
    check_rates(param_groups, lr)
    # Checked here, so that a missing compiler shows before training starts.
    if options.compiled:
        RULE.check(device)
    return Prodigy(param_groups, _defaults(options, lr))


def _defaults(options: Options, lr: float) -> dict[str, Any]:
    """Return the group options under prodigyopt's names."""
    return {
        "lr": lr,
        "betas": (options.beta1, options.beta2),
        "beta3": options.beta3,
        "eps": options.eps,
        "use_bias_correction": options.use_bias_correction,
        "safeguard_warmup": options.safeguard_warmup,
        "d0": options.d0,
        "d": options.d0,
        "d_max": options.d0,
        "d_numerator": 0.0,
        "d_coef": options.d_coef,
        "growth_rate": float("inf") if options.growth_rate is None else options.growth_rate,
        "slice_p": options.slice_p,
        "k": 0,
        # Unused here, but prodigyopt reads them when it loads a checkpoint.
        "decouple": True,
        "fsdp_in_use": False,
        "compiled": options.compiled,
    }


def effective_lr(optimizer: torch.optim.Optimizer) -> float:
    """Return d * lr, the equivalent of AdamW's learning rate, without bias correction."""
    return read_estimate(optimizer) * float(optimizer.param_groups[0]["lr"])


SPEC = OptimizerSpec(
    name="prodigy",
    label="Prodigy",
    summary="Finds the learning rate by itself; needs twice AdamW's memory.",
    paper="https://arxiv.org/abs/2306.06101",
    options=Options,
    build=build,
    state_bytes=16.0,  # two moments, s and p0 in float32; 8.7 with slice_p = 11
    default_lr=1.0,  # a factor: the rate itself is d
    effective_lr=effective_lr,
    warning=(
        "With a warm-up, turn on the safeguard, or the rate grows too high. The rate never falls "
        "by itself: a cosine over the whole run may help, restarts do not. Not for adversarial "
        "training."
    ),
)

"""Prodigy (Mishchenko & Defazio 2024, arXiv 2306.06101, algorithm 4), the authors' package.

d estimates the distance to the solution and only grows during training; the applied rate is d * lr.
"""

from dataclasses import dataclass
from typing import Any

import torch

from trainer.core.errors import MissingDependency
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.prodigy_options import ProdigyOptions, check_rates


@dataclass(frozen=True)
class Options(ProdigyOptions):
    """The options of the authors' Prodigy."""


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Prodigy.

    Raises:
        MissingDependency: prodigyopt is not installed.
        ConfigError: the groups have different learning rates.
    """
    lr = options.lr or SPEC.default_lr
    check_rates(param_groups, lr)
    try:
        from prodigyopt import Prodigy
    except ImportError:
        raise MissingDependency("prodigyopt", "The optimizer Prodigy (reference)") from None
    return Prodigy(
        param_groups,
        lr=lr,
        betas=(options.beta1, options.beta2),
        beta3=options.beta3,
        eps=options.eps,
        use_bias_correction=options.use_bias_correction,
        safeguard_warmup=options.safeguard_warmup,
        d0=options.d0,
        d_coef=options.d_coef,
        # No limit, which is also the default of prodigyopt.
        growth_rate=float("inf") if options.growth_rate is None else options.growth_rate,
    )


def effective_lr(optimizer: torch.optim.Optimizer) -> float:
    """Return d * lr, the equivalent of AdamW's learning rate, without bias correction."""
    group = optimizer.param_groups[0]
    return float(group["d"]) * float(group["lr"])


SPEC = OptimizerSpec(
    name="prodigy_reference",
    label="Prodigy (reference)",
    summary="The authors' code, for comparison; waits for the device twice per tensor and step.",
    paper="https://arxiv.org/abs/2306.06101",
    options=Options,
    build=build,
    state_bytes=16.0,  # two moments, s and p0 in float32
    default_lr=1.0,  # a factor: the rate itself is d
    effective_lr=effective_lr,
)

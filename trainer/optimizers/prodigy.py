"""Prodigy (Mishchenko & Defazio 2024, arXiv 2306.06101, algorithm 4): finds its own step size.

The estimate d of the distance to the solution grows while training; the rate applied is d * lr.
"""

from dataclasses import dataclass
from typing import Any

import torch

from trainer.errors import ConfigError, MissingDependency
from trainer.options import option
from trainer.specs import OptimizerSpec


@dataclass(frozen=True)
class Options:
    """The options of Prodigy."""

    lr: float | None = option(
        None,
        "Learning rate",
        "A factor on the rate that Prodigy finds; empty means 1, which is right nearly always. "
        "To tune, change the growth coefficient instead.",
        min=1e-3,
        max=10.0,
    )
    d0: float = option(
        1e-6,
        "First estimate (d0)",
        "Where the rate starts. If it never leaves this value, try 1e-5 or 1e-4.",
        min=1e-12,
        max=1.0,
    )
    d_coef: float = option(
        1.0,
        "Growth coefficient",
        "Multiplies the rate that is found: 0.5 is careful, 2 is bold.",
        min=0.01,
        max=100.0,
    )
    growth_rate: float | None = option(
        None,
        "Largest growth per step",
        "1.02 acts like a warm-up. Empty: no limit.",
        min=1.0,
        max=1e6,
        folded=True,
    )
    beta1: float = option(
        0.9, "Beta 1", "Memory of the gradient's mean.", min=0.0, max=0.9999, folded=True
    )
    beta2: float = option(
        0.999, "Beta 2", "Memory of the gradient's size.", min=0.0, max=0.999999, folded=True
    )
    beta3: float | None = option(
        None,
        "Beta 3",
        "Memory of the estimate. Empty: the square root of beta 2.",
        min=0.0,
        max=0.999999,
        folded=True,
    )
    eps: float = option(
        1e-8, "Epsilon", "Keeps the division finite.", min=1e-15, max=1e-2, folded=True
    )
    weight_decay: float = option(
        0.01,
        "Weight decay",
        "Multiplied by the rate that is found, so it is weak at first; biases, norms and "
        "embeddings are left alone.",
        min=0.0,
        max=1.0,
        folded=True,
    )
    safeguard_warmup: bool = option(
        False,
        "Safeguard warm-up",
        "Switch on if the schedule has a warm-up, else the rate found comes out too high.",
        folded=True,
    )
    use_bias_correction: bool = option(
        False,
        "Bias correction",
        "Adam's correction of the first steps. Together with the safeguard the estimate may never "
        "leave its first value: watch the learning-rate curve.",
        folded=True,
    )


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Prodigy.

    Raises:
        MissingDependency: prodigyopt is not installed.
        ConfigError: the groups bring different learning rates.
    """
    lr = options.lr or SPEC.default_lr
    rates = sorted({float(group.get("lr", lr)) for group in param_groups})
    if len(rates) > 1:
        raise ConfigError(
            f"Prodigy estimates one rate for all weights, but the groups ask for {rates}. Give "
            "every group the same learning rate, or choose AdamW."
        )
    try:
        from prodigyopt import Prodigy
    except ImportError:
        raise MissingDependency("prodigyopt", "The optimizer Prodigy") from None
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
        growth_rate=float("inf") if options.growth_rate is None else options.growth_rate,
    )


def effective_lr(optimizer: torch.optim.Optimizer) -> float:
    """Return d * lr, the rate that AdamW would be given; bias correction is left out."""
    group = optimizer.param_groups[0]
    return float(group["d"]) * float(group["lr"])


SPEC = OptimizerSpec(
    name="prodigy",
    label="Prodigy",
    summary="Finds the learning rate by itself; twice AdamW's memory and slower steps.",
    paper="https://arxiv.org/abs/2306.06101",
    options=Options,
    build=build,
    state_bytes=16.0,
    default_lr=1.0,
    effective_lr=effective_lr,
)

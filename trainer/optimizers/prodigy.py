"""Prodigy (Mishchenko & Defazio 2024, arXiv 2306.06101, algorithm 4): finds its own step size.

d estimates the distance to the solution and only grows during training; the applied rate is d * lr.
"""

from dataclasses import dataclass

import torch

from trainer.core.errors import MissingDependency
from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.prodigy import Prodigy, check_rates, effective_lr
from trainer.optimizers._core.param_groups import Group
from trainer.optimizers._core.shared_options import (
    beta1_field,
    beta2_field,
    compiled_field,
    eps_field,
    implementation_field,
)


@dataclass(frozen=True)
class Options:
    """The options of Prodigy, in either implementation."""

    # Equal results, and never slower in a whole step: docs/benchmarks.md, "Two implementations".
    implementation: str = implementation_field(
        "timbre: Timbre's own code, which is faster and never makes a GPU wait. package: the "
        "authors' prodigyopt, which multiplies epsilon by the new estimate instead of the last "
        "one. Otherwise both compute the same, except for rounding."
    )
    lr: float | None = option(
        None,
        "Learning rate",
        "Multiplies the rate that Prodigy finds. Empty means 1, which is nearly always right; to "
        "tune, change the growth coefficient instead.",
        min=1e-3,
        max=10.0,
    )
    # The defaults below are the paper's and prodigyopt's, except where a comment says otherwise.
    d0: float = option(
        1e-6,
        "First estimate (d0)",
        "The initial rate. If it never grows from this value, try 1e-5 or 1e-4.",
        min=1e-12,
        max=1.0,
    )
    d_coef: float = option(
        1.0,
        "Growth coefficient",
        "Multiplies the rate that Prodigy finds: 0.5 is conservative, 2 is aggressive.",
        min=0.01,
        max=100.0,
    )
    # None for no limit, because options are stored as JSON, which has no infinity.
    growth_rate: float | None = option(
        None,
        "Largest growth per step",
        "Limits how much the rate grows per step; 1.02 acts like a warm-up. Empty: no limit.",
        min=1.0,
        max=1e6,
        advanced=True,
    )
    beta1: float = beta1_field()
    beta2: float = beta2_field()
    # None, so that it follows beta 2 when that is changed.
    beta3: float | None = option(
        None,
        "Beta 3",
        "Decay rate of the sums that the estimate uses. Empty: the square root of beta 2.",
        min=0.0,
        max=0.999999,
        advanced=True,
    )
    eps: float = eps_field()
    # prodigyopt's default is 0; 0.01 is AdamW's, and stays weak because it is multiplied by d.
    weight_decay: float = option(
        0.01,
        "Weight decay",
        "Multiplied by the rate that Prodigy finds, so it is weak at first; biases, norms and "
        "embeddings are exempt.",
        min=0.0,
        max=1.0,
        advanced=True,
    )
    safeguard_warmup: bool = option(
        False,
        "Safeguard warm-up",
        "Turn this on if the schedule has a warm-up; otherwise the rate grows too high.",
        advanced=True,
    )
    use_bias_correction: bool = option(
        False,
        "Bias correction",
        "Adam's bias correction for the first steps. Combined with the safeguard, the estimate may "
        "never grow: watch the learning-rate curve.",
        advanced=True,
    )
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
    param_groups: list[Group], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Prodigy.

    Raises:
        ConfigError: the groups have different learning rates.
        MissingDependency: the package was chosen and is not installed.
    """
    defaults = {
        "lr": options.lr or SPEC.default_lr,
        "betas": (options.beta1, options.beta2),
        "beta3": options.beta3,
        "eps": options.eps,
        "use_bias_correction": options.use_bias_correction,
        "safeguard_warmup": options.safeguard_warmup,
        "d0": options.d0,
        "d_coef": options.d_coef,
        # No limit, which is also the default of prodigyopt.
        "growth_rate": float("inf") if options.growth_rate is None else options.growth_rate,
        "slice_p": options.slice_p,
    }
    if options.implementation == "timbre":
        return Prodigy(param_groups, defaults)
    check_rates(param_groups, defaults["lr"])
    try:
        from prodigyopt import Prodigy as PackagedProdigy
    except ImportError:
        raise MissingDependency("prodigyopt", "Prodigy from the package") from None
    return PackagedProdigy(param_groups, **defaults)


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

"""Options that all Prodigy variants share, and the check of their parameter groups."""

from dataclasses import dataclass
from typing import Any

from trainer.core.errors import ConfigError
from trainer.core.options import option


@dataclass(frozen=True)
class ProdigyOptions:
    """The options that all Prodigy variants share."""

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
    beta1: float = option(
        0.9,
        "Beta 1",
        "Decay rate of the moving average of gradients.",
        min=0.0,
        max=0.9999,
        advanced=True,
    )
    beta2: float = option(
        0.999,
        "Beta 2",
        "Decay rate of the moving average of squared gradients.",
        min=0.0,
        max=0.999999,
        advanced=True,
    )
    # None, so that it follows beta 2 when that is changed.
    beta3: float | None = option(
        None,
        "Beta 3",
        "Decay rate of the sums that the estimate uses. Empty: the square root of beta 2.",
        min=0.0,
        max=0.999999,
        advanced=True,
    )
    eps: float = option(
        1e-8,
        "Epsilon",
        "Added to the denominator to avoid dividing by zero.",
        min=1e-15,
        max=1e-2,
        advanced=True,
    )
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


def check_rates(param_groups: list[dict[str, Any]], lr: float) -> None:
    """Check that all parameter groups have the same learning rate.

    Raises:
        ConfigError: their learning rates differ.
    """
    # d is one number for all weights, so different rates would be ratios without a meaning here.
    rates = sorted({float(group.get("lr", lr)) for group in param_groups})
    if len(rates) > 1:
        raise ConfigError(
            f"Prodigy estimates a single rate for all weights, but the groups have {rates}. Give "
            "every group the same learning rate, or choose AdamW."
        )

"""What every form of Prodigy can be told, and what none of them can do."""

from dataclasses import dataclass
from typing import Any

from trainer.core.errors import ConfigError
from trainer.core.options import option


@dataclass(frozen=True)
class ProdigyOptions:
    """The options that all forms of Prodigy share."""

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


def check_rates(param_groups: list[dict[str, Any]], lr: float) -> None:
    """Refuse groups that bring different learning rates.

    Raises:
        ConfigError: they do.
    """
    rates = sorted({float(group.get("lr", lr)) for group in param_groups})
    if len(rates) > 1:
        raise ConfigError(
            f"Prodigy estimates one rate for all weights, but the groups ask for {rates}. Give "
            "every group the same learning rate, or choose AdamW."
        )

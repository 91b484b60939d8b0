"""Options of both Schedule-Free AdamW implementations, and how to switch their mode."""

from dataclasses import dataclass
from typing import Any

from trainer.core.options import option


@dataclass(frozen=True)
class ScheduleFreeOptions:
    """The options of Schedule-Free AdamW."""

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
    beta2: float = option(
        0.999,
        "Beta 2",
        "Decay rate of the moving average of squared gradients.",
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
    # AdamW's default; the package's is 0. Decay acts at y, as in the package.
    weight_decay: float = option(
        0.01,
        "Weight decay",
        "Pulls weights towards zero; biases, norms and embeddings are exempt.",
        min=0.0,
        max=1.0,
        advanced=True,
    )


def set_mode(optimizer: Any, training: bool) -> None:
    """Set the weights to y for training, or to the average x for everything else."""
    if training:
        optimizer.train()
    else:
        optimizer.eval()

"""What both forms of Schedule-Free AdamW can be told, and how they are switched."""

from dataclasses import dataclass
from typing import Any

from trainer.core.options import option


@dataclass(frozen=True)
class ScheduleFreeOptions:
    """The options of Schedule-Free AdamW."""

    lr: float | None = option(
        None,
        "Learning rate",
        "Empty: what suits the model family. It stays high to the end; 1 to 10 times AdamW's.",
        min=1e-9,
        max=1.0,
    )
    warmup_steps: int = option(
        50,
        "Warm-up (steps)",
        "Steps until the full rate, about 5 % of the run; they weigh less in the average.",
        min=0,
    )
    beta1: float = option(
        0.9,
        "Beta 1",
        "How near to the average gradients are taken; 0.95 to 0.98 for long runs.",
        min=0.01,
        max=0.9999,
        folded=True,
    )
    beta2: float = option(
        0.999, "Beta 2", "Memory of the gradient's size.", min=0.0, max=0.999999, folded=True
    )
    eps: float = option(
        1e-8, "Epsilon", "Keeps the division finite.", min=1e-15, max=1e-2, folded=True
    )
    weight_decay: float = option(
        0.01,
        "Weight decay",
        "Pulls weights towards zero; biases, norms and embeddings are left alone.",
        min=0.0,
        max=1.0,
        folded=True,
    )


def set_mode(optimizer: Any, training: bool) -> None:
    """Turn the weights into y for training, or into the average x for use."""
    if training:
        optimizer.train()
    else:
        optimizer.eval()

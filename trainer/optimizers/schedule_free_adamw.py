"""Schedule-Free AdamW (Defazio et al. 2024, arXiv 2405.15682, algorithm 1): averages, not decay.

Gradients are taken at y, between the fast weights z and their average x; x is what one keeps.
"""

from dataclasses import dataclass
from typing import Any

import torch

from trainer.errors import MissingDependency
from trainer.options import option
from trainer.specs import OptimizerSpec


@dataclass(frozen=True)
class Options:
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
        raise MissingDependency("schedulefree", "The optimizer Schedule-Free AdamW") from None
    optimizer = AdamWScheduleFree(
        param_groups,
        lr=options.lr or SPEC.default_lr,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        warmup_steps=options.warmup_steps,
    )
    optimizer.train()
    return optimizer


def set_mode(optimizer: Any, training: bool) -> None:
    """Turn the weights into y for training, or into the average x for use."""
    if training:
        optimizer.train()
    else:
        optimizer.eval()


SPEC = OptimizerSpec(
    name="schedule_free_adamw",
    label="Schedule-Free AdamW",
    summary="Averages the weights instead of lowering the rate: good whenever you stop.",
    paper="https://arxiv.org/abs/2405.15682",
    options=Options,
    build=build,
    state_bytes=8.0,
    default_lr=1e-3,
    schedules=("constant",),
    set_mode=set_mode,
)

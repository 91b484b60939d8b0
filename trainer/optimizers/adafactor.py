"""Adafactor (Shazeer & Stern 2018, arXiv 1804.04235, algorithm 4), as PyTorch has it."""

from dataclasses import dataclass
from typing import Any

import torch

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._core.shared_options import lr_field, weight_decay_field


@dataclass(frozen=True)
class Options:
    """The options of Adafactor."""

    lr: float | None = lr_field(
        "Empty: what suits the model family. In proportion to each weight's size, unlike AdamW's."
    )
    decay_power: float = option(
        -0.8,
        "Decay power",
        "The memory of the gradient's size grows with the step to this power.",
        min=-1.0,
        max=-0.1,
        folded=True,
    )
    clip: float = option(
        1.0, "Largest update", "Root mean square of an update at most.", min=0.01, max=100.0
    )
    eps: float = option(
        1e-3,
        "Smallest scale",
        "A weight near zero counts as this large.",
        min=1e-8,
        max=1.0,
        folded=True,
    )
    weight_decay: float = weight_decay_field(0.0)


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Adafactor in its form with few kernels."""
    return torch.optim.Adafactor(
        param_groups,
        lr=options.lr or SPEC.default_lr,
        beta2_decay=options.decay_power,
        eps=(None, options.eps),
        d=options.clip,
        foreach=True,
    )


SPEC = OptimizerSpec(
    name="adafactor",
    label="Adafactor",
    summary="Almost no memory of its own; for models that hardly fit.",
    paper="https://arxiv.org/abs/1804.04235",
    options=Options,
    build=build,
    # Row and column means of a matrix of 256 x 256; less for larger ones.
    state_bytes=0.0313,
    # The constant rate with which T5 is fine-tuned: Raffel et al. 2020, section 3.1.2.
    default_lr=1e-3,
    in_parts=True,
)

"""Adafactor (Shazeer & Stern 2018, arXiv 1804.04235, algorithm 4), PyTorch's implementation."""

from dataclasses import dataclass

import torch

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._core.param_groups import Group
from trainer.optimizers._core.shared_options import lr_field, weight_decay_field


@dataclass(frozen=True)
class Options:
    """The options of Adafactor."""

    lr: float | None = lr_field(
        "Empty: the model family's default. Relative to the size of each weight, unlike AdamW's."
    )
    # These three defaults are the paper's (algorithm 6, "Proposed hyperparameters").
    decay_power: float = option(
        -0.8,
        "Decay power",
        "The decay rate of squared gradients is 1 - step to this power.",
        min=-1.0,
        max=-0.1,
        advanced=True,
    )
    clip: float = option(
        1.0, "Largest update", "Limit on the root mean square of an update.", min=0.01, max=100.0
    )
    eps: float = option(
        1e-3,
        "Smallest scale",
        "Weights smaller than this count as this large.",
        min=1e-8,
        max=1.0,
        advanced=True,
    )
    weight_decay: float = weight_decay_field(0.0)


def build(
    param_groups: list[Group], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Adafactor in its multi-tensor form, which launches few kernels."""
    return torch.optim.Adafactor(
        param_groups,
        lr=options.lr or SPEC.default_lr,
        beta2_decay=options.decay_power,
        # None: torch then uses the machine epsilon of the dtype for squared gradients.
        eps=(None, options.eps),
        d=options.clip,
        foreach=True,
    )


SPEC = OptimizerSpec(
    name="adafactor",
    label="Adafactor",
    summary="Needs almost no memory itself; for models that barely fit.",
    paper="https://arxiv.org/abs/1804.04235",
    options=Options,
    build=build,
    # One float32 mean per row and column of a 256 x 256 matrix: 4 * 512 / 65536 bytes, rounded.
    # Larger matrices need less.
    state_bytes=0.0313,
    # "We use a constant learning rate of 0.001 when fine-tuning": T5, arXiv 1910.10683.
    default_lr=1e-3,
    in_parts=True,
)

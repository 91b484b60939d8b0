"""AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101, algorithm 2), PyTorch's fused kernel."""

from dataclasses import dataclass
from typing import Any

import torch

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.cautious_adamw import CautiousAdamW
from trainer.optimizers._core.shared_options import cautious_field

_FUSED_DEVICES = ("cuda", "cpu")


@dataclass(frozen=True)
class Options:
    """The options of AdamW."""

    lr: float | None = option(
        None,
        "Learning rate",
        "Empty: what suits the model family. Too high: the loss jumps; too low: it hardly moves.",
        min=1e-9,
        max=1.0,
    )
    beta1: float = option(
        0.9, "Beta 1", "Memory of the gradient's mean.", min=0.0, max=0.9999, folded=True
    )
    beta2: float = option(
        0.999,
        "Beta 2",
        "Memory of the gradient's size. 0.98 follows changes faster; raise it for small batches.",
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
        "Pulls weights towards zero; biases, norms and embeddings are left alone.",
        min=0.0,
        max=1.0,
        folded=True,
    )
    cautious: bool = cautious_field()


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return AdamW in its fastest form for the device: one fused kernel, else few list kernels."""
    if options.cautious:
        defaults = {
            "lr": options.lr or SPEC.default_lr,
            "betas": (options.beta1, options.beta2),
            "eps": options.eps,
        }
        return CautiousAdamW(param_groups, defaults)
    is_fused = device.type in _FUSED_DEVICES
    return torch.optim.AdamW(
        param_groups,
        lr=options.lr or SPEC.default_lr,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        fused=is_fused,
        foreach=not is_fused,
    )


SPEC = OptimizerSpec(
    name="adamw",
    label="AdamW",
    summary="The usual choice: predictable, fast, goes with every schedule.",
    paper="https://arxiv.org/abs/1711.05101",
    options=Options,
    build=build,
    state_bytes=8.0,
    default_lr=1e-4,
    in_parts=True,
)

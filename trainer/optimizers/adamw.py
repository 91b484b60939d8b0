"""AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101, algorithm 2), on PyTorch's fused kernel."""

from dataclasses import dataclass
from typing import Any

import torch

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.cautious_adamw import CautiousAdamW
from trainer.optimizers._core.shared_options import cautious_field

# On a CPU the multi-tensor form takes 3.3 times as long (benchmarks/results/optimizers.json).
_FUSED_DEVICES = ("cuda", "cpu")


@dataclass(frozen=True)
class Options:
    """The options of AdamW."""

    lr: float | None = option(
        None,
        "Learning rate",
        "Empty: the model family's default. Too high: the loss jumps; too low: it barely falls.",
        min=1e-9,
        max=1.0,
    )
    # The betas, epsilon and weight decay are PyTorch's defaults.
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
        "Decay rate of the moving average of squared gradients. 0.98 adapts faster; raise it for "
        "small batches.",
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
    weight_decay: float = option(
        0.01,
        "Weight decay",
        "Pulls weights towards zero; biases, norms and embeddings are exempt.",
        min=0.0,
        max=1.0,
        advanced=True,
    )
    cautious: bool = cautious_field()


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return the fastest AdamW for the device: the fused kernel, else the multi-tensor form."""
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
        # torch refuses the fused and the multi-tensor form together.
        foreach=not is_fused,
    )


SPEC = OptimizerSpec(
    name="adamw",
    label="AdamW",
    summary="The usual choice: predictable, fast, works with every schedule.",
    paper="https://arxiv.org/abs/1711.05101",
    options=Options,
    build=build,
    state_bytes=8.0,  # two moments in float32
    # Chosen by hand, between the 1e-5 and 2e-4 usual for fine-tuning; families set their own.
    default_lr=1e-4,
    in_parts=True,
)

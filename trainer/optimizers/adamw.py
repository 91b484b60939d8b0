"""AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101, algorithm 2), on PyTorch's fused kernel."""

from dataclasses import dataclass

import torch

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._core.elementwise import apply_cautious_adamw
from trainer.optimizers._core.param_groups import Group
from trainer.optimizers._core.param_table import ParamTable, TableOptimizer
from trainer.optimizers._core.shared_options import (
    beta1_field,
    cautious_field,
    eps_field,
    lr_field,
    weight_decay_field,
)


@dataclass(frozen=True)
class Options:
    """The options of AdamW."""

    lr: float | None = lr_field(
        "Empty: the model family's default. Too high: the loss jumps; too low: it barely falls."
    )
    # The betas, epsilon and weight decay are PyTorch's defaults.
    beta1: float = beta1_field()
    beta2: float = option(
        0.999,
        "Beta 2",
        "Decay rate of the moving average of squared gradients. 0.98 adapts faster; raise it for "
        "small batches.",
        min=0.0,
        max=0.999999,
        advanced=True,
    )
    eps: float = eps_field()
    weight_decay: float = weight_decay_field()
    cautious: bool = cautious_field()


class CautiousAdamW(TableOptimizer):
    """Cautious AdamW (Liang et al. 2024, arXiv 2411.16085, algorithm 1); keys as in torch."""

    states = ("exp_avg", "exp_avg_sq")
    # Chosen by hand, between the 1e-5 and 2e-4 usual for fine-tuning; families set their own.
    default_lr = 1e-4

    def update_table(self, table: ParamTable) -> None:
        """Update the weights and moments of a table once."""
        beta1, beta2 = table.group["betas"]
        table.gate.lerp_(table.column("exp_avg"), table.grads, 1 - beta1)
        table.gate.mean_squares_(table.column("exp_avg_sq"), table.grads, beta2)
        apply_cautious_adamw(table)


def build(
    param_groups: list[Group], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return AdamW on the fused kernel, or its cautious variant, which no kernel computes."""
    if options.cautious:
        return CautiousAdamW.build(param_groups, options, device)
    return torch.optim.AdamW(
        param_groups,
        lr=options.lr or SPEC.default_lr,
        betas=(options.beta1, options.beta2),
        eps=options.eps,
        # On a CPU the multi-tensor form takes 3.3 times as long (docs/benchmarks.md).
        fused=True,
    )


SPEC = OptimizerSpec(
    name="adamw",
    label="AdamW",
    summary="The usual choice: predictable, fast, works with every schedule.",
    paper="https://arxiv.org/abs/1711.05101",
    options=Options,
    build=build,
    state_bytes=8.0,  # two moments in float32
    default_lr=CautiousAdamW.default_lr,
    in_parts=True,
)

"""Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2), which steps by the sign of momentum."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.elementwise import apply_updates
from trainer.optimizers._core.native import NativeRule, compiled_field
from trainer.optimizers._core.param_table import ParamTable, TableOptimizer
from trainer.optimizers._core.shared_options import (
    beta1_field,
    cautious_field,
    lr_field,
    weight_decay_field,
)


@dataclass(frozen=True)
class Options:
    """The options of Lion."""

    lr: float | None = lr_field("Every weight moves by exactly this much. A fifth of AdamW's rate.")
    beta1: float = beta1_field()
    # 0.9 and 0.99 are the paper's betas.
    beta2: float = option(
        0.99, "Beta 2", "Decay rate of the momentum itself.", min=0.0, max=0.999999, advanced=True
    )
    # Section 5 of the paper: a rate 3 to 10 times below AdamW's, weight decay that much above.
    weight_decay: float = weight_decay_field(0.05, hint=" Five times AdamW's.")
    cautious: bool = cautious_field()
    compiled: bool = compiled_field(" No effect with Cautious.")


RULE = NativeRule(
    columns=("weight", "grad", "mean"),
    numbers=("lr", "keep", "beta1", "beta2"),
    body="""
    const Real g = grad[i], m = mean[i], step = beta1 * m + (1 - beta1) * g;
    weight[i] = keep * weight[i] - lr * Real((step > 0) - (step < 0));
    mean[i] = beta2 * m + (1 - beta2) * g;
    """,
)


class Lion(TableOptimizer):
    """Lion; state keys as in the authors' code."""

    def fresh_state(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """Return zero momentum for a weight of any shape."""
        return {"exp_avg": torch.zeros_like(weight)}

    def update_table(self, table: ParamTable) -> None:
        """Update the weights and states of a table once."""
        group, (beta1, beta2) = table.group, table.group["betas"]
        if group["cautious"]:
            means = table.column("exp_avg")
            updates = list(lists.lerp(means, table.grads, 1 - beta1))
            lists.sign_(updates)
            apply_updates(table, updates, lr=group["lr"], cautious_of=table.grads)
            table.gate.lerp_(means, table.grads, 1 - beta2)
            return
        lr, keep = group["lr"], 1 - group["lr"] * group["weight_decay"]
        if group["compiled"] and table.is_dense("exp_avg"):
            table.apply(RULE, ("exp_avg",), (lr, keep, beta1, beta2))
            return
        for weights, grads, means in table.pieces("exp_avg"):
            updates = list(lists.lerp(means, grads, 1 - beta1))
            lists.sign_(updates)
            table.gate.move_(weights, updates, lr, keep=keep)
            # Last, because the step interpolates from the momentum before this gradient.
            table.gate.lerp_(means, grads, 1 - beta2)


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return Lion.

    Raises:
        ConfigError: the rule cannot be compiled on this machine.
    """
    defaults = {
        "lr": options.lr or SPEC.default_lr,
        "betas": (options.beta1, options.beta2),
        "cautious": options.cautious,
        "compiled": options.compiled and not options.cautious,
    }
    if options.compiled:
        RULE.check(device)
    return Lion(param_groups, defaults)


SPEC = OptimizerSpec(
    name="lion",
    label="Lion",
    summary="Half of AdamW's memory. All steps have the same size, which suits large batches.",
    paper="https://arxiv.org/abs/2302.06675",
    options=Options,
    build=build,
    state_bytes=4.0,  # one momentum in float32
    default_lr=2e-5,  # a fifth of AdamW's: section 5 of the paper says 3 to 10 times less
    in_parts=True,
    rate_follows="adamw",
    warning="Small batches make the signs noisy: lower the rate or raise the batch size.",
)

"""AdEMAMix (Pagliardini, Ablin & Grangier 2024, arXiv 2409.03137): AdamW plus a slow average.

The weight of the slow average and its half-life grow over `ramp_steps` (section 3 of the paper).
"""

from dataclasses import dataclass

from torch import Tensor

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.elementwise import adam_denominators, apply_updates, mask_disagreement
from trainer.optimizers._core.param_table import ParamTable, Pieces, TableOptimizer
from trainer.optimizers._core.shared_options import (
    beta1_field,
    beta2_field,
    cautious_field,
    compiled_field,
    eps_field,
    lr_field,
    weight_decay_field,
)
from trainer.optimizers._core.warmup import warmed_up


@dataclass(frozen=True)
class Options:
    """The options of AdEMAMix."""

    lr: float | None = lr_field("Empty: AdamW's usual rate for fine-tuning.")
    beta1: float = beta1_field()
    beta2: float = beta2_field()
    # The paper's 0.9999 has a half-life of 7,000 steps, longer than most fine-tuning runs.
    beta3: float = option(
        0.999,
        "Beta 3",
        "Decay rate of the slow average; its half-life is 700 steps at 0.999 and 7,000 at 0.9999.",
        min=0.0,
        max=0.999999,
    )
    # 5 is chosen by hand, low in the paper's range, because short runs average little.
    alpha: float = option(
        5.0, "Alpha", "Weight of the slow average; the paper uses 4 to 10.", min=0.0, max=100.0
    )
    # 500 is chosen by hand for runs of a few thousand steps.
    ramp_steps: int = option(
        500,
        "Ramp (steps)",
        "Steps until alpha and beta 3 reach their values; the paper uses the whole run. 0: from "
        "the first step, which is unstable at the start.",
        min=0,
    )
    eps: float = eps_field()
    weight_decay: float = weight_decay_field()
    cautious: bool = cautious_field()
    compiled: bool = compiled_field()


class AdEMAMix(TableOptimizer):
    """AdEMAMix; state keys as in the authors' code."""

    states = ("exp_avg_fast", "exp_avg_slow", "exp_avg_sq")
    default_lr = 1e-4  # the same as AdamW's, as in the paper (section 4)

    def update_table(self, table: ParamTable) -> None:
        """Update the weights and states of a table once."""
        is_cautious = table.group["cautious"]
        for weights, grads, *moments in table.pieces(*self.states, whole=is_cautious):
            updates = _updates(grads, moments, table)
            if is_cautious:
                mask_disagreement(updates, grads)
            apply_updates(table, weights, updates)


def _updates(grads: list[Tensor], moments: Pieces, table: ParamTable) -> list[Tensor]:
    """Update the moments and return the updates (any shape)."""
    fast, slow, squares = moments
    group, step, gate = table.group, table.step, table.gate
    beta1, beta2, beta3_final = group["betas"]
    alpha, beta3 = warmed_up(group["alpha"], beta1, beta3_final, step, group["ramp_steps"])
    gate.lerp_(fast, grads, 1 - beta1)
    gate.lerp_(slow, grads, 1 - beta3)
    gate.mean_squares_(squares, grads, beta2)
    # The slow average gets no bias correction; its weight alpha grows from zero instead.
    updates = list(lists.div(fast, 1 - beta1**step))
    lists.add_(updates, slow, alpha=alpha)
    lists.div_(updates, adam_denominators(squares, group["eps"], beta2, step))
    return updates


SPEC = OptimizerSpec(
    name="ademamix",
    label="AdEMAMix",
    summary="AdamW with a second, slow average of old gradients; made for long runs.",
    paper="https://arxiv.org/abs/2409.03137",
    options=Options,
    build=AdEMAMix.build,
    state_bytes=12.0,  # three moments in float32
    default_lr=AdEMAMix.default_lr,
    in_parts=True,
    rate_follows="adamw",
    warning=(
        "Not useful in short runs: below about 5,000 steps the slow average has barely formed. A "
        "run that stops early never reaches the end of the ramp."
    ),
)

"""Lion (Chen et al. 2023, arXiv 2302.06675, algorithm 2), which steps by the sign of momentum."""

from dataclasses import dataclass

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.elementwise import apply_updates, mask_disagreement
from trainer.optimizers._core.param_table import ParamTable, TableOptimizer
from trainer.optimizers._core.shared_options import (
    beta1_field,
    cautious_field,
    compiled_field,
    lr_field,
    weight_decay_field,
)


@dataclass(frozen=True)
class Options:
    """The options of Lion."""

    lr: float | None = lr_field("Every weight moves by exactly this much. A fifth of AdamW's rate.")
    beta1: float = beta1_field()
    # 0.9 and 0.99 are the authors' defaults.
    beta2: float = option(
        0.99, "Beta 2", "Decay rate of the momentum itself.", min=0.0, max=0.999999, advanced=True
    )
    # The authors' README: a rate 3 to 10 times below AdamW's, weight decay that much above.
    weight_decay: float = weight_decay_field(0.05, hint=" Five times AdamW's.")
    cautious: bool = cautious_field()
    compiled: bool = compiled_field()


class Lion(TableOptimizer):
    """Lion; state keys as in the authors' code."""

    states = ("exp_avg",)
    default_lr = 2e-5  # a fifth of AdamW's; the authors' README says 3 to 10 times less

    def update_table(self, table: ParamTable) -> None:
        """Update the weights and states of a table once."""
        is_cautious, (beta1, beta2) = table.group["cautious"], table.group["betas"]
        for weights, grads, means in table.pieces("exp_avg", whole=is_cautious):
            updates = list(lists.lerp(means, grads, 1 - beta1))
            lists.sign_(updates)
            if is_cautious:
                mask_disagreement(updates, grads)
            apply_updates(table, weights, updates)
            # Last, because the step interpolates from the momentum before this gradient.
            table.gate.lerp_(means, grads, 1 - beta2)


SPEC = OptimizerSpec(
    name="lion",
    label="Lion",
    summary="Half of AdamW's memory. All steps have the same size, which suits large batches.",
    paper="https://arxiv.org/abs/2302.06675",
    options=Options,
    build=Lion.build,
    state_bytes=4.0,  # one momentum in float32
    default_lr=Lion.default_lr,
    in_parts=True,
    rate_follows="adamw",
    warning="Small batches make the signs noisy: lower the rate or raise the batch size.",
)

"""MARS-Lion (Yuan et al. 2024, arXiv 2411.10438, algorithm 4): Lion on corrected gradients."""

from dataclasses import dataclass

from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.mars import Mars, MarsOptions
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.elementwise import apply_updates
from trainer.optimizers._core.param_table import ParamTable
from trainer.optimizers._core.shared_options import lr_field, weight_decay_field


@dataclass(frozen=True)
class Options(MarsOptions):
    """The options of MARS-Lion."""

    lr: float | None = lr_field("Every weight moves by exactly this much. A fifth of AdamW's rate.")
    # As in lion.py, for the same reason.
    weight_decay: float = weight_decay_field(0.05, hint=" Five times AdamW's.")


class MarsLion(Mars):
    """MARS-Lion; state keys as in the authors' code, without the second moment it never reads."""

    default_lr = 2e-5  # as in lion.py

    states = ("exp_avg",)

    def update_corrected(self, table: ParamTable) -> None:
        """Update the weights that are not vectors."""
        beta1, *_ = table.group["betas"]
        for (weights, _, means), corrected in self.corrected(table):
            table.gate.lerp_(means, corrected, 1 - beta1)
            apply_updates(table, weights, list(lists.sign(means)))


SPEC = OptimizerSpec(
    name="mars_lion",
    label="MARS-Lion",
    summary="Lion on variance-reduced gradients, with AdamW's memory.",
    paper="https://arxiv.org/abs/2411.10438",
    options=Options,
    build=MarsLion.build,
    state_bytes=8.0,  # momentum and the last gradient in float32
    default_lr=MarsLion.default_lr,
    in_parts=True,
    rate_follows="adamw",
    warning="The authors tuned only MARS-AdamW. Biases and gains get AdamW at this low rate.",
)

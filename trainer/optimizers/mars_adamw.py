"""MARS-AdamW (Yuan et al. 2024, arXiv 2411.10438, algorithm 3): AdamW on corrected gradients."""

from dataclasses import dataclass

from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.mars import Mars, MarsOptions
from trainer.optimizers._core.elementwise import apply_adamw, apply_cautious_adamw
from trainer.optimizers._core.param_table import ParamTable
from trainer.optimizers._core.shared_options import beta2_field, cautious_field


@dataclass(frozen=True)
class Options(MarsOptions):
    """The options of MARS-AdamW."""

    # That of the authors' language-model runs.
    beta2: float = beta2_field(0.99)
    cautious: bool = cautious_field()


class MarsAdamW(Mars):
    """MARS-AdamW; state keys as in the authors' code."""

    default_lr = 1e-4  # AdamW's, because the correction hardly changes step sizes

    states = ("exp_avg", "exp_avg_sq")

    def update_corrected(self, table: ParamTable) -> None:
        """Update the weights that are not vectors."""
        beta1, beta2 = table.group["betas"]
        is_cautious = table.group["cautious"]
        for (weights, _, means, squares), corrected in self.corrected(table):
            if not is_cautious:
                apply_adamw(table, [weights, corrected, means, squares])
                continue
            table.gate.lerp_(means, corrected, 1 - beta1)
            table.gate.mean_squares_(squares, corrected, beta2)
        # After all pieces, because the mask of an update needs whole tensors.
        if is_cautious:
            apply_cautious_adamw(table)


SPEC = OptimizerSpec(
    name="mars_adamw",
    label="MARS-AdamW",
    summary="AdamW on variance-reduced gradients; half again as much memory.",
    paper="https://arxiv.org/abs/2411.10438",
    options=Options,
    build=MarsAdamW.build,
    state_bytes=12.0,  # two moments and the last gradient in float32
    default_lr=MarsAdamW.default_lr,
    in_parts=True,
    rate_follows="adamw",
    warning="Only shown to help in pre-training language models.",
)

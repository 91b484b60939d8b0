"""MARS-Shampoo (Yuan et al. 2024, arXiv 2411.10438, algorithm 5), with orthogonalised steps."""

from dataclasses import dataclass

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.mars import Mars, MarsOptions
from trainer.optimizers._core.newton_schulz import as_matrix, orthogonalize, step_factor
from trainer.optimizers._core.param_table import ParamTable


@dataclass(frozen=True)
class Options(MarsOptions):
    """The options of MARS-Shampoo."""

    scale: str = option(
        "match_adamw",
        "Size of a step",
        "match_adamw: the size of AdamW's steps, so that AdamW's rates work. original: as in the "
        "authors' code, about six times smaller for a matrix of 1024 x 1024.",
        choices=("match_adamw", "original"),
        advanced=True,
    )


class MarsShampoo(Mars):
    """MARS-Shampoo; state keys as in the authors' code."""

    default_lr = 1e-4  # AdamW's, because steps have its size: arXiv 2502.16982, equation 4

    states = ("exp_avg",)

    def update_corrected(self, table: ParamTable) -> None:
        """Update the weights that are not vectors."""
        group, beta1 = table.group, table.group["betas"][0]
        for (_, _, means), corrected in self.corrected(table):
            table.gate.lerp_(means, corrected, 1 - beta1)
        # Whole matrices, not pieces: orthogonalising needs all entries of one.
        updates = orthogonalize([as_matrix(mean) for mean in table.column("exp_avg")])
        # Decay before the step, as in AdamW.
        table.gate.scale_(table.weights, 1 - group["lr"] * group["weight_decay"])
        for weight, update in zip(table.weights, updates, strict=True):
            rate = group["lr"] * step_factor(weight.shape, group["scale"])
            table.gate.move_([weight], [update.view_as(weight)], rate)


SPEC = OptimizerSpec(
    name="mars_shampoo",
    label="MARS-Shampoo",
    summary="Orthogonalised steps on variance-reduced gradients; slow at small batch sizes.",
    paper="https://arxiv.org/abs/2411.10438",
    options=Options,
    build=MarsShampoo.build,
    state_bytes=8.0,  # momentum and the last gradient in float32
    default_lr=MarsShampoo.default_lr,
    rate_follows="adamw",
    experimental=True,
    warning=(
        "The authors tuned only MARS-AdamW. The matrix work doesn't shrink with the batch size, so "
        "small batches are slow."
    ),
)

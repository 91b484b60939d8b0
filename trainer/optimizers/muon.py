"""Muon (Jordan 2024): orthogonalised steps for hidden matrices, AdamW for all other weights.

Steps have the size of AdamW's (Liu et al. 2025, arXiv 2502.16982, equation 4), so one learning rate
and one weight decay serve both. Matrices that hold several projections side by side, such as fused
QKV layers, are split and each projection is orthogonalised on its own. torch.optim.Muon does not
split them, takes no convolutions, and iterates in bfloat16 on a CPU too.
"""

from dataclasses import dataclass

from torch import Tensor

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.elementwise import apply_adamw
from trainer.optimizers._core.newton_schulz import as_matrix, orthogonalize, step_factor
from trainer.optimizers._core.param_groups import Group
from trainer.optimizers._core.param_table import ParamTable, TableOptimizer
from trainer.optimizers._core.shared_options import (
    beta1_field,
    beta2_field,
    eps_field,
    lr_field,
    weight_decay_field,
)


@dataclass(frozen=True)
class Options:
    """The options of Muon."""

    lr: float | None = lr_field("Empty: the model family's default. One rate for all weights.")
    # 0.95 with Nesterov momentum is what Jordan's code uses.
    momentum: float = option(
        0.95, "Momentum", "Decay rate of the momentum of matrices.", min=0.0, max=0.9999
    )
    nesterov: bool = option(True, "Nesterov", "Use Nesterov momentum.", advanced=True)
    # text_head and mel_head of the GPT families, and mel_linear of FastSpeech 2.
    heads: str = option(
        "head, mel_linear",
        "Output layers",
        "Matrices that get AdamW, besides embeddings, as comma-separated parts of their names. "
        "A matrix matches if a dot-separated part of its name is the given part or ends in _part.",
    )
    scale: str = option(
        "match_adamw",
        "Size of a step",
        "match_adamw: the size of AdamW's steps, so that AdamW's rates work. original: as in "
        "Jordan's code, which uses a rate of 0.02.",
        choices=("match_adamw", "original"),
        advanced=True,
    )
    beta1: float = beta1_field()
    beta2: float = beta2_field()
    eps: float = eps_field()
    weight_decay: float = weight_decay_field()


class Muon(TableOptimizer):
    """Muon plus AdamW for the rest; state keys as in torch's Muon and AdamW."""

    default_lr = 1e-4  # AdamW's, because steps have its size: arXiv 2502.16982, equation 4

    def __init__(self, param_groups: list[Group], defaults: Group) -> None:
        super().__init__(param_groups, defaults)
        heads = [part.strip() for part in defaults["heads"].split(",") if part.strip()]
        self._parts: dict[Tensor, int] = {}
        for group in self.param_groups:
            names = group.get("param_names", [""] * len(group["params"]))
            for name, weight in zip(names, group["params"], strict=True):
                if group.get("are_matrices", True) and is_hidden(name, weight, heads):
                    self._parts[weight] = count_projections(name, weight)

    def state_names(self, weight: Tensor) -> tuple[str, ...]:
        """Return the momentum of a matrix, or AdamW's moments of another weight of any shape."""
        return ("momentum_buffer",) if weight in self._parts else ("exp_avg", "exp_avg_sq")

    def update_table(self, table: ParamTable) -> None:
        """Update the weights and states of a table once."""
        hidden, others = table.split(self._parts.__contains__)
        if hidden.weights:
            self._update_hidden(hidden)
        for pieces in others.pieces("exp_avg", "exp_avg_sq"):
            apply_adamw(others, pieces)

    def _update_hidden(self, table: ParamTable) -> None:
        group, momentum = table.group, table.group["momentum"]
        buffers = table.column("momentum_buffer")
        table.gate.lerp_(buffers, table.grads, 1 - momentum)
        directions = buffers
        if group["nesterov"]:
            directions = list(lists.lerp(table.grads, buffers, momentum))
        matrices: list[Tensor] = []
        for weight, direction in zip(table.weights, directions, strict=True):
            matrices += self._projections(weight, direction)
        table.gate.scale_(table.weights, 1 - group["lr"] * group["weight_decay"])
        # Views, so that updating a projection updates its weight.
        targets = [part for weight in table.weights for part in self._projections(weight, weight)]
        for target, step in zip(targets, orthogonalize(matrices), strict=True):
            rate = group["lr"] * step_factor(target.shape, group["scale"])
            table.gate.move_([target], [step], rate)

    def _projections(self, weight: Tensor, tensor: Tensor) -> list[Tensor]:
        """View a tensor of a weight's shape (any shape) as its matrices, one per projection."""
        # GPT-2 stores weights input-major, nn.MultiheadAttention output-major; in both cases the
        # three projections lie along the longer side.
        side = 0 if weight.size(0) > weight[0].numel() else 1
        return list(as_matrix(tensor).chunk(self._parts[weight], dim=side))


def is_hidden(name: str, weight: Tensor, heads: list[str]) -> bool:
    """Return whether a decayed weight (any shape) is a hidden matrix, not an output layer."""
    parts = name.split(".")
    is_head = any(part == head or part.endswith(f"_{head}") for part in parts for head in heads)
    return weight.dim() >= 2 and not is_head


def count_projections(name: str, weight: Tensor) -> int:
    """Return 3 for a weight (any shape) that holds query, key and value, else 1."""
    # The names of GPT-2's fused QKV layer and of nn.MultiheadAttention's.
    is_joint = any(part in ("c_attn", "in_proj_weight") for part in name.split("."))
    sides = sorted((weight.size(0), weight[0].numel()))
    return 3 if is_joint and sides[1] == 3 * sides[0] else 1


SPEC = OptimizerSpec(
    name="muon",
    label="Muon",
    summary="Orthogonalised steps for matrices, AdamW for the rest; slow at small batch sizes.",
    paper="https://kellerjordan.github.io/posts/muon/",
    options=Options,
    build=Muon.build,
    state_bytes=4.0,  # one momentum in float32; weights with AdamW need 8
    default_lr=Muon.default_lr,
    in_parts=True,
    rate_follows="adamw",
    warning=(
        "Full fine-tuning with Muon degrades checkpoints that were trained with Adam (arXiv "
        "2605.10468). The matrix work doesn't shrink with the batch size, so small batches are "
        "slow."
    ),
)

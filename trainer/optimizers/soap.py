"""SOAP (Vyas et al. 2024, arXiv 2409.11321, algorithm 3): Adam in the eigenbasis of Shampoo."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.soap import Soap
from trainer.optimizers._core.shared_options import (
    beta1_field,
    beta2_field,
    eps_field,
    lr_field,
    weight_decay_field,
)


@dataclass(frozen=True)
class Options:
    """The options of SOAP."""

    lr: float | None = lr_field("Empty: AdamW's usual rate for fine-tuning.")
    refresh_every: int = option(
        10, "Refresh (steps)", "Steps between updates of the bases; higher is faster.", min=1
    )
    # The authors' 10,000 would include embeddings of 8,194 audio codes and 6,681 text tokens, whose
    # factor and basis take up to half a gigabyte.
    max_size: int = option(
        2048,
        "Largest side",
        "Matrix sides larger than this are not rotated.",
        min=1,
        max=16384,
        advanced=True,
    )
    beta1: float = beta1_field(0.95)
    beta2: float = beta2_field(0.95)
    eps: float = eps_field()
    weight_decay: float = weight_decay_field()


class SoapAdam(Soap):
    """SOAP."""

    def step_in_basis(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], step: int
    ) -> Tensor:
        """Update the moments with a rotated gradient (any shape); return the rotated update."""
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(grad, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        # As in the authors' code, epsilon is added before bias correction.
        correction = math.sqrt(1 - beta2**step) / (1 - beta1**step)
        return mean / square.sqrt().add_(group["eps"]) * correction


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return SOAP."""
    defaults = {
        "lr": options.lr or SPEC.default_lr,
        "betas": (options.beta1, options.beta2),
        "eps": options.eps,
        "refresh_every": options.refresh_every,
        "max_size": options.max_size,
    }
    return SoapAdam(param_groups, defaults)


SPEC = OptimizerSpec(
    name="soap",
    label="SOAP",
    summary="Adam in a better basis: fewer steps at large batch sizes, but slow at small ones.",
    paper="https://arxiv.org/abs/2409.11321",
    options=Options,
    build=build,
    state_bytes=24.0,  # two moments, and two averages and two bases of a square matrix
    default_lr=1e-4,  # AdamW's, because steps have the size of Adam's
    rate_follows="adamw",
    warning=(
        "Needs 24 bytes per weight of a square matrix and up to 40 for others. The eigenbases cost "
        "the same at every batch size, so small batches are slow."
    ),
)

"""SOAP (Vyas et al. 2024, arXiv 2409.11321, algorithm 3): Adam in the eigenbasis of Shampoo."""

import math

from torch import Tensor

from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.soap import Soap, SoapOptions
from trainer.optimizers._core.param_groups import Group


class SoapAdam(Soap):
    """SOAP."""

    default_lr = 1e-4  # AdamW's, because steps have the size of Adam's

    def step_in_basis(
        self, grad: Tensor, state: dict[str, Tensor], group: Group, step: int
    ) -> Tensor:
        """Update the moments with a rotated gradient (any shape); return the rotated update."""
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(grad, 1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        # As in the authors' code, epsilon is added before bias correction.
        correction = math.sqrt(1 - beta2**step) / (1 - beta1**step)
        return mean / square.sqrt().add_(group["eps"]) * correction


SPEC = OptimizerSpec(
    name="soap",
    label="SOAP",
    summary="Adam in a better basis: fewer steps at large batch sizes, but slow at small ones.",
    paper="https://arxiv.org/abs/2409.11321",
    options=SoapOptions,
    build=SoapAdam.build,
    state_bytes=24.0,  # two moments, and two averages and two bases of a square matrix
    default_lr=SoapAdam.default_lr,
    rate_follows="adamw",
    warning=(
        "Needs 24 bytes per weight of a square matrix and up to 40 for others. The eigenbases cost "
        "the same at every batch size, so small batches are slow."
    ),
)

"""SOAP with AdEMAMix: the rule of arXiv 2409.03137 in the eigenbasis of arXiv 2409.11321."""

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
from trainer.optimizers._core.warmup import warmed_up


@dataclass(frozen=True)
class Options:
    """The options of SOAP with AdEMAMix."""

    lr: float | None = lr_field("Empty: AdamW's usual rate for fine-tuning.")
    refresh_every: int = option(
        10, "Refresh (steps)", "Steps between updates of the bases; higher is faster.", min=1
    )
    # As in soap.py.
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
    beta3: float = option(
        0.999, "Beta 3", "Decay rate of the slow average.", min=0.0, max=0.999999, advanced=True
    )
    alpha: float = option(5.0, "Alpha", "Weight of the slow average.", min=0.0, max=100.0)
    ramp_steps: int = option(
        500, "Ramp (steps)", "Steps until alpha and beta 3 reach their values; 0: at once.", min=0
    )
    eps: float = eps_field()
    weight_decay: float = weight_decay_field()


class SoapAdEMAMix(Soap):
    """SOAP with a fast and a slow first moment."""

    mean_states = ("exp_avg_fast", "exp_avg_slow")

    def step_in_basis(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], step: int
    ) -> Tensor:
        """Update the moments with a rotated gradient (any shape); return the rotated update."""
        beta1, beta2, beta3 = group["betas"]
        alpha, beta3 = warmed_up(group["alpha"], beta1, beta3, step, group["ramp_steps"])
        fast = state["exp_avg_fast"].lerp_(grad, 1 - beta1)
        slow = state["exp_avg_slow"].lerp_(grad, 1 - beta3)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        # As in ademamix.py, the slow average gets no bias correction.
        numerator = (fast / (1 - beta1**step)).add_(slow, alpha=alpha)
        return numerator / square.sqrt().add_(group["eps"]) * math.sqrt(1 - beta2**step)


def build(
    param_groups: list[dict[str, Any]], options: Options, device: torch.device
) -> torch.optim.Optimizer:
    """Return SOAP with AdEMAMix."""
    defaults = {
        "lr": options.lr or SPEC.default_lr,
        "betas": (options.beta1, options.beta2, options.beta3),
        "alpha": options.alpha,
        "ramp_steps": options.ramp_steps,
        "eps": options.eps,
        "refresh_every": options.refresh_every,
        "max_size": options.max_size,
    }
    return SoapAdEMAMix(param_groups, defaults)


SPEC = OptimizerSpec(
    name="soap_ademamix",
    label="SOAP + AdEMAMix",
    summary="SOAP with a second, slow average of old gradients.",
    paper="https://arxiv.org/abs/2409.11321",
    options=Options,
    build=build,
    state_bytes=28.0,  # SOAP's 24 and a second first moment
    default_lr=1e-4,  # AdamW's, because steps have the size of Adam's
    rate_follows="adamw",
    experimental=True,
    warning="No paper studies this combination. As slow as SOAP, and needs even more memory.",
)

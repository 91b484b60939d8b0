"""SOAP with AdEMAMix: the rule of arXiv 2409.03137 in the eigenbasis of arXiv 2409.11321."""

import math
from dataclasses import dataclass

from torch import Tensor

from trainer.core.options import option
from trainer.core.specs import OptimizerSpec
from trainer.optimizers._algorithms.soap import Soap, SoapOptions
from trainer.optimizers._core.param_groups import Group
from trainer.optimizers._core.warmup import warmed_up


@dataclass(frozen=True)
class Options(SoapOptions):
    """The options of SOAP with AdEMAMix."""

    beta3: float = option(
        0.999, "Beta 3", "Decay rate of the slow average.", min=0.0, max=0.999999, advanced=True
    )
    alpha: float = option(5.0, "Alpha", "Weight of the slow average.", min=0.0, max=100.0)
    ramp_steps: int = option(
        500, "Ramp (steps)", "Steps until alpha and beta 3 reach their values; 0: at once.", min=0
    )


class SoapAdEMAMix(Soap):
    """SOAP with a fast and a slow first moment."""

    default_lr = 1e-4  # AdamW's, because steps have the size of Adam's

    mean_states = ("exp_avg_fast", "exp_avg_slow")

    def step_in_basis(
        self, grad: Tensor, state: dict[str, Tensor], group: Group, step: int
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


SPEC = OptimizerSpec(
    name="soap_ademamix",
    label="SOAP + AdEMAMix",
    summary="SOAP with a second, slow average of old gradients.",
    paper="https://arxiv.org/abs/2409.11321",
    options=Options,
    build=SoapAdEMAMix.build,
    state_bytes=28.0,  # SOAP's 24 and a second first moment
    default_lr=SoapAdEMAMix.default_lr,
    rate_follows="adamw",
    experimental=True,
    warning="No paper studies this combination. As slow as SOAP, and needs even more memory.",
)

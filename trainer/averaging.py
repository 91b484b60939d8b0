"""EMA: exponentially averaged weights, kept beside the training weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def start_average(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every trained parameter by name, in fp32; what is frozen stays as it is."""
    return {
        name: value.detach().clone().float()
        for name, value in model.named_parameters()
        if value.requires_grad
    }


@torch.no_grad()
def update_average(
    average: dict[str, Tensor],
    weights: Mapping[str, Tensor],
    *,
    decay: float,
    step: int,
    finite: Tensor | None = None,
) -> None:
    """Move the average towards weights (any shape); early steps weigh more: a short run counts.

    average = d * average + (1 - d) * weights with d = min(decay, (1 + step) / (10 + step)). It
    stays as it is where `finite` (a scalar, bool) is false; the device decides, no host waits.
    """
    weight = 1.0 - min(decay, (1 + step) / (10 + step))
    if finite is not None:
        weight = weight * finite.float()
    for name, value in average.items():
        value.lerp_(weights[name].detach().float(), weight)

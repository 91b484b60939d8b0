"""Keep an exponential moving average (EMA) of the weights beside the training weights."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def start_average(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of every trained parameter by name, in fp32; frozen ones are left out."""
    # fp32 even for bf16 weights: bf16 has 8 significant bits, so the small steps of an average
    # would be rounded away.
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
    """Move the average in place towards the weights (tensors of any shape).

    average = d * average + (1 - d) * weights with d = min(decay, (1 + step) / (10 + step)). The
    average does not change where `finite` (a scalar, bool) is false.
    """
    # Without this warm-up (as in TensorFlow's ExponentialMovingAverage with `num_updates`) the
    # initial weights would dominate the average of a short run.
    weight = 1.0 - min(decay, (1 + step) / (10 + step))
    if finite is not None:
        # A product instead of an `if`: reading the flag would make the host wait for the GPU.
        weight = weight * finite.float()
    for name, value in average.items():
        value.lerp_(weights[name].detach().float(), weight)

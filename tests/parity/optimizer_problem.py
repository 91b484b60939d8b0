"""A small problem on which optimizers are compared: gradients by arithmetic alone, no generator."""

from typing import Any

import torch
from torch import Tensor, nn

# Sides that are preconditioned have full rank; otherwise SOAP's bases are arbitrary in part.
SHAPES = ((8, 8), (12, 6), (8,))
STEPS = 24
MATRIX_DECAY = 0.02
Trace = list[list[float]]
"""Weights after a third, two thirds and all of the steps, flat."""

# Our options for each published algorithm, as close to the authors' defaults as a small problem
# allows; `limit` bounds the distance to the published code relative to the way both went.
CASES: dict[str, dict[str, Any]] = {
    "mars_adamw": {"options": {"lr": 3e-3}, "limit": 1e-5},
    "mars_lion": {"options": {"lr": 1e-3}, "limit": 1e-5},
    # The authors iterate in bfloat16 on every device, we in float32 on a CPU.
    "mars_shampoo": {"options": {"lr": 3e-3, "scale": "original"}, "limit": 3e-2},
    "muon": {"options": {"lr": 3e-3, "scale": "original", "beta2": 0.95}, "limit": 3e-2},
    "ademamix": {"options": {"lr": 3e-3, "beta3": 0.99, "ramp_steps": 10}, "limit": 1e-5},
    "soap": {"options": {"lr": 3e-3, "refresh_every": 5, "max_size": 8}, "limit": 1e-3},
    "kron": {"options": {"lr": 3e-3}, "limit": 1e-3},
    "lion": {"options": {"lr": 1e-3}, "limit": 1e-5},
}


def make_groups(dtype: torch.dtype = torch.float32) -> list[dict[str, Any]]:
    """Return matrices with decay and a vector without, always the same."""
    weights = [nn.Parameter(wave(shape, number).to(dtype)) for number, shape in enumerate(SHAPES)]
    return [
        {"params": weights[:2], "weight_decay": MATRIX_DECAY, "are_matrices": True},
        {"params": weights[2:], "weight_decay": 0.0, "are_matrices": False},
    ]


def train(optimizer: torch.optim.Optimizer, steps: int = STEPS) -> Trace:
    """Descend a noisy bowl and return the weights at three times."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    trace: Trace = []
    for step in range(1, steps + 1):
        for number, weight in enumerate(weights):
            pull = (weight.detach() - 0.1) * (1 + 0.5 * wave(weight.shape, number + 7)).to(weight)
            weight.grad = pull + 0.3 * wave(weight.shape, 100 * step + number).to(weight)
        optimizer.step()
        if step in (steps // 3, 2 * steps // 3, steps):
            trace.append(torch.cat([weight.detach().flatten() for weight in weights]).tolist())
    return trace


def wave(shape: tuple[int, ...] | torch.Size, number: int) -> Tensor:
    """Return numbers within -1..1 that look random (any shape), float64."""
    count = int(torch.Size(shape).numel())
    angle = torch.arange(count, dtype=torch.float64) * 12.9898 + 78.233 * (number + 1)
    return ((angle.sin() * 43758.5453) % 1.0 * 2 - 1).view(shape)


def distance(found: Trace, wanted: Trace) -> float:
    """Return how far two traces end from each other, relative to the way the wanted one went."""
    start = torch.cat([w.detach().flatten() for g in make_groups() for w in g["params"]]).double()
    ends = [torch.tensor(trace, dtype=torch.float64) for trace in (found, wanted)]
    return float((ends[0] - ends[1]).norm() / (ends[1] - start).norm())

"""Prodigy (Mishchenko & Defazio 2024, arXiv 2306.06101, algorithm 4) in one pass over memory.

The paper updates the weights with d, the estimate from the previous step, so everything that reads
or writes a weight fits in one pass, and the new d takes a few scalar operations afterwards. d stays
on the device. The result differs from `prodigyopt` only in the term d * eps, where that package
uses the new d (2.6e-4 of the distance moved over 20 steps of a small model).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.core.errors import ConfigError
from trainer.optimizers._algorithms.prodigy_cpu import (
    HostNumbers,
    Parts,
    move_on_host,
    step_on_host,
)
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.found_inf import StepGate
from trainer.optimizers._core.param_groups import Group, StateDict
from trainer.optimizers._core.param_table import ParamTable, TableOptimizer, cut

ESTIMATES = ("d", "d_max", "d_numerator")
"""Scalars of the method, shared by all groups; plain numbers in a checkpoint."""
_START: Group = {
    "beta3": None,
    "growth_rate": math.inf,
    "use_bias_correction": False,
    "safeguard_warmup": False,
    "d_numerator": 0.0,
    "k": 0,
}
"""Group options of prodigyopt at their defaults, and the start of its counts."""


@dataclass(frozen=True)
class Scalars:
    """The numbers of a step; `d` and the rates derived from it are scalars on the device."""

    betas: tuple[float, float, float]
    eps: float
    d: Tensor
    rate: Tensor
    weight_of_grad: Tensor


class EstimatingOptimizer(TableOptimizer):
    """Base of all Prodigy variants: estimates on the device, plain numbers in a checkpoint."""

    estimates: tuple[str, ...] = ESTIMATES

    def __init__(self, param_groups: list[Group], defaults: Group) -> None:
        d0 = defaults["d0"]
        super().__init__(param_groups, _START | {"d": d0, "d_max": d0} | defaults)
        self.copied_d: Tensor | None = None
        self.common_rate()
        self._share_estimates()

    def state_dict(self) -> StateDict:
        """Return the state with the estimates as plain numbers, read from the device."""
        packed = super().state_dict()
        for group in packed["param_groups"]:
            group.update({name: float(group[name]) for name in self.estimates})
        return packed

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state and move its estimates to the device."""
        super().load_state_dict(state_dict)
        self._share_estimates()

    def common_rate(self) -> float:
        """Return the learning rate of all groups.

        Raises:
            ConfigError: the groups have different learning rates.
        """
        lr = float(self.param_groups[0]["lr"])
        check_rates(self.param_groups, lr)
        return lr

    def _share_estimates(self) -> None:
        """Move the first group's estimates to the device and share them with all groups."""
        first = self.param_groups[0]
        device = first["params"][0].device
        for name in self.estimates:
            # float64, like the Python numbers that prodigyopt keeps.
            value = torch.as_tensor(first[name], dtype=torch.float64).to(device, copy=True)
            for group in self.param_groups:
                group[name] = value
        self.copied_d = None

    def end_step(self) -> None:
        """Count the step and start copying d to the host without waiting."""
        for group in self.param_groups:
            group["k"] += 1
        d = self.param_groups[0]["d"]
        if d.is_cuda:
            if self.copied_d is None:
                # Pinned, because a copy to other memory makes the host wait.
                self.copied_d = torch.full((), float(d), dtype=d.dtype).pin_memory()
            self.copied_d.copy_(d, non_blocking=True)


class Prodigy(EstimatingOptimizer):
    """Prodigy with d on the device; state keys as in prodigyopt."""

    def fresh_state(self, weight: Tensor, group: Group) -> dict[str, Tensor]:
        """Return zero moments and a flat copy of the weight (any shape), as prodigyopt does."""
        # A clone, because flattening a contiguous weight only gives a view of it.
        first = weight.flatten()[:: group["slice_p"]].clone()
        return {
            "s": torch.zeros_like(first),
            "p0": first,
            "exp_avg": torch.zeros_like(weight, memory_format=torch.contiguous_format),
            "exp_avg_sq": torch.zeros_like(weight, memory_format=torch.contiguous_format),
        }

    def update(self, tables: list[ParamTable]) -> None:
        """Update the weights with the current d, then update d."""
        group, lr = self.param_groups[0], self.common_rate()
        # At rate 0, where a warm-up may start, nothing moves and the estimate learns nothing.
        if not tables or lr == 0:
            return
        scalars = scalars_of(group, lr)
        found = [parts for table in tables for parts in self._move(table, scalars)]
        adapt(group, scalars, found, tables[0].gate)
        self.end_step()

    def _move(self, table: ParamTable, scalars: Scalars) -> Iterator[Parts]:
        """Update weights and moments, and yield the partial sums that the new d needs."""
        columns = [_flatten(tensors) for tensors in (table.weights, table.grads)]
        columns += [_flatten(table.column(name)) for name in ("exp_avg", "exp_avg_sq")]
        estimators = [table.column("s"), table.column("p0")]
        slice_p, decay = table.group["slice_p"], table.group["weight_decay"]
        gate = table.gate
        # Two passes, because the sums have fewer entries; the first reads weights before they move.
        if slice_p > 1:
            weights, grads = ([tensor[::slice_p] for tensor in x] for x in columns[:2])
            yield estimate([weights, grads, *estimators], scalars, gate)
            for pieces in cut(columns):
                _adam(pieces, scalars, decay, gate)
        elif _is_host(scalars.d):
            yield step_on_host([*columns, *estimators], _host_numbers(scalars, decay))
        else:
            for *pieces, sums, firsts in cut([*columns, *estimators]):
                yield estimate([*pieces[:2], sums, firsts], scalars, gate)
                _adam(pieces, scalars, decay, gate)
        for weight, values in zip(table.weights, columns[0], strict=True):
            # Flattening copied this weight, so the update went to the copy.
            if not weight.is_contiguous():
                weight.copy_(values.view_as(weight))


def effective_lr(optimizer: torch.optim.Optimizer) -> float:
    """Return d * lr, the equivalent of AdamW's learning rate, without bias correction.

    On a GPU d is the last copied value, a step or two old, so that the host never waits.
    """
    copied = optimizer.copied_d if isinstance(optimizer, EstimatingOptimizer) else None
    group = optimizer.param_groups[0]
    return float(group["d"] if copied is None else copied) * float(group["lr"])


def scalars_of(group: Group, lr: float) -> Scalars:
    """Return the numbers of a step; d stays on the device."""
    beta1, beta2 = group["betas"]
    # The default beta 3 = sqrt(beta 2) is the paper's (algorithm 4).
    beta3 = beta2**0.5 if group["beta3"] is None else group["beta3"]
    correction = 1.0
    if group["use_bias_correction"]:
        step = group["k"] + 1
        correction = (1 - beta2**step) ** 0.5 / (1 - beta1**step)
    # As in prodigyopt, the safeguard takes the learning rate out of the estimate's denominator: the
    # small rates of a warm-up would otherwise make the estimate too large.
    d = group["d"].clone()
    rate = d * (lr * correction)
    weight_of_grad = (d if group["safeguard_warmup"] else rate) * (d / group["d0"])
    return Scalars((beta1, beta2, beta3), group["eps"], d, rate, weight_of_grad)


def estimate(pieces: list[list[Tensor]], scalars: Scalars, gate: StepGate) -> Parts:
    """Update the weighted gradient sums and return the partial sums that the new d needs.

    `pieces` are the weights, gradients, sums and initial weights (any shape).
    """
    weights, grads, sums, firsts = pieces
    ways = lists.sub(firsts, weights)
    products = [
        torch.dot(grad.flatten(), way.flatten()) for grad, way in zip(grads, ways, strict=True)
    ]
    weighted = list(lists.scale(grads, scalars.weight_of_grad.to(grads[0].dtype)))
    gate.move_(sums, weighted, -1.0, keep=scalars.betas[2])
    return products, [part.sum() for part in lists.abs(sums)]


def _adam(
    pieces: list[list[Tensor]], scalars: Scalars, weight_decay: float, gate: StepGate
) -> None:
    """Apply Adam on d * g at rate d * lr to flat pieces: weights, gradients, both moments."""
    weights, grads, means, squares = pieces
    beta1, beta2, _ = scalars.betas
    if _is_host(scalars.d):
        numbers = _host_numbers(scalars, weight_decay)
        move_on_host([weights, list(lists.mul(grads, numbers.d)), means, squares], numbers)
        return
    dtype = weights[0].dtype
    d, rate = scalars.d.to(dtype), scalars.rate.to(dtype)
    scaled = list(lists.scale(grads, d))
    gate.lerp_(means, scaled, 1 - beta1)
    gate.mean_squares_(squares, scaled, beta2)
    roots = lists.sqrt(squares)
    lists.shift_(roots, d * scalars.eps)
    lists.divide_(roots, rate)
    updates = list(lists.div(means, roots))
    if weight_decay:
        lists.add_(updates, lists.scale(weights, rate * weight_decay))
    gate.move_(weights, updates, 1.0)


def adapt(group: Group, scalars: Scalars, parts: list[Parts], gate: StepGate) -> None:
    """Update the estimates (scalars on the device) from the partial sums."""
    d, d_max, total = (group[name] for name in ESTIMATES)
    numerator, denominator = (
        torch.stack([part for both in parts for part in both[side]]).to(d.dtype).sum()
        for side in (0, 1)
    )
    numerator *= scalars.rate * (d / group["d0"])
    # prodigyopt returns early here when all gradients are zero. Reading the sum to decide that
    # would make the host wait, so the device selects instead.
    has_gradient = denominator > 0
    kept = torch.stack([d, d_max, total])
    total = torch.where(has_gradient, total * scalars.betas[2] + numerator, total)
    guess = torch.where(has_gradient, group["d_coef"] * total / denominator, d)
    # The first estimate may replace d0 at once; growth_rate limits d only after that, as in
    # prodigyopt.
    start = torch.where(d == group["d0"], torch.maximum(d, guess), d)
    d_max = torch.maximum(d_max, guess)
    d = torch.minimum(d_max, start * group["growth_rate"])
    changed = gate.pick(torch.stack([d, d_max, total]), kept)
    for name, value in zip(ESTIMATES, changed.unbind(), strict=True):
        group[name].copy_(value)


def _flatten(tensors: list[Tensor]) -> list[Tensor]:
    """View tensors of any shape as flat; copies those that are not contiguous."""
    return [tensor if tensor.dim() == 1 else tensor.reshape(-1) for tensor in tensors]


def _is_host(scalar: Tensor) -> bool:
    return scalar.device.type == "cpu"


def _host_numbers(scalars: Scalars, weight_decay: float) -> HostNumbers:
    """Return the scalars as plain numbers; on a CPU reading them waits for nothing."""
    d, rate, weight = (
        _as_factor(float(scalar.numpy()))
        for scalar in (scalars.d, scalars.rate, scalars.weight_of_grad)
    )
    return HostNumbers(scalars.betas, scalars.eps * d, d, rate, weight, weight_decay)


def _as_factor(value: float) -> float:
    """Return a factor that torch accepts for float32: infinity if the number is too large.

    A run whose estimate grew that far has diverged, and its loss will be NaN.
    """
    return value if abs(value) <= torch.finfo(torch.float32).max else math.copysign(math.inf, value)


def check_rates(param_groups: list[Group], lr: float) -> None:
    """Check that all parameter groups have the same learning rate.

    Raises:
        ConfigError: their learning rates differ.
    """
    # d is one number for all weights, so different rates would be ratios without a meaning here.
    rates = sorted({float(group.get("lr", lr)) for group in param_groups})
    if len(rates) > 1:
        raise ConfigError(
            f"Prodigy estimates a single rate for all weights, but the groups have {rates}. Give "
            "every group the same learning rate, or choose AdamW."
        )

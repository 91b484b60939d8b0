"""Prodigy (Mishchenko & Defazio 2024, arXiv 2306.06101, algorithm 4) in one pass over memory.

The paper moves the weights with the estimate d of the step before, so all that reads or writes a
weight is one pass, and the new d is a few scalars after it. d never leaves the device; only the
term d * eps differs from `prodigyopt`, which takes the new d there.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.optimizers import _lists as lists
from trainer.optimizers._compiled import CompiledRule
from trainer.optimizers._elementwise import apply_adamw
from trainer.optimizers._prodigy_options import check_rates
from trainer.optimizers._tables import Table, TableOptimizer, cut

ESTIMATES = ("d", "d_max", "d_numerator")
"""Scalars of the method, one for all groups; plain numbers in a checkpoint."""
Parts = tuple[list[Tensor], list[Tensor]]
"""Scalars that add up to <g, p0 - p> and to |s|."""
_LONG_AGO = 10**9
"""A step at which Adam's bias correction is one."""


@dataclass(frozen=True)
class Scalars:
    """Numbers of a step: `d` and the rates that follow from it are scalars on the device."""

    betas: tuple[float, float, float]
    eps: float
    d: Tensor
    rate: Tensor
    weight_of_grad: Tensor


class EstimatingOptimizer(TableOptimizer):
    """What all forms of Prodigy share: estimates on the device, plain numbers in a checkpoint."""

    estimates: tuple[str, ...] = ESTIMATES

    def __init__(self, param_groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__(param_groups, defaults)
        self._share_estimates()

    def state_dict(self) -> dict[str, Any]:
        """Return the state with plain numbers for the estimates; reads them from the device."""
        packed = super().state_dict()
        for group in packed["param_groups"]:
            group.update({name: float(group[name]) for name in self.estimates})
        return packed

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state and put its estimates on the device."""
        super().load_state_dict(state_dict)
        self._share_estimates()

    def common_rate(self) -> float:
        """Return the learning rate of all groups.

        Raises:
            ConfigError: they have different ones.
        """
        lr = float(self.param_groups[0]["lr"])
        check_rates(self.param_groups, lr)
        return lr

    def _share_estimates(self) -> None:
        """Put the estimates of the first group on the device and let all groups hold them."""
        first = self.param_groups[0]
        device = first["params"][0].device
        dtype = torch.float32 if device.type == "mps" else torch.float64
        for name in self.estimates:
            value = torch.as_tensor(first[name], dtype=dtype).to(device, copy=True)
            for group in self.param_groups:
                group[name] = value


class Prodigy(EstimatingOptimizer):
    """Prodigy with d on the device; checkpoints go to and come from `prodigyopt`."""

    def __init__(self, param_groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__(param_groups, defaults)
        self._compiled = CompiledRule(_rule_of_rows) if defaults["compiled"] else None

    def fresh_state(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """Return zero averages and a copy of the weight (any shape), flat like prodigyopt's."""
        first = weight.flatten()[:: group["slice_p"]].clone()
        return {
            "s": torch.zeros_like(first),
            "p0": first,
            "exp_avg": torch.zeros_like(weight, memory_format=torch.contiguous_format),
            "exp_avg_sq": torch.zeros_like(weight, memory_format=torch.contiguous_format),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of ours or of prodigyopt."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            for weight in group["params"]:
                _complete(self.state.get(weight), weight)

    def update(self, tables: list[Table]) -> None:
        """Move the weights with d as it is, then estimate d anew."""
        group, lr = self.param_groups[0], self.common_rate()
        if not tables or lr == 0:
            return
        scalars = scalars_of(group, lr)
        found = [parts for table in tables for parts in self._move(table, scalars)]
        adapt(group, scalars, found)
        for each in self.param_groups:
            each["k"] += 1

    def _move(self, table: Table, scalars: Scalars) -> Iterator[Parts]:
        """Yield the parts of both sums while weights and averages change."""
        columns = [_flatten(tensors) for tensors in (table.weights, table.grads)]
        columns += [_flatten(table.column(name)) for name in ("exp_avg", "exp_avg_sq")]
        sums, firsts = table.column("s"), table.column("p0")
        slice_p, decay = table.group["slice_p"], table.group["weight_decay"]
        moved, estimators = columns[0], [sums, firsts]
        if slice_p > 1:
            weights, grads = ([tensor[::slice_p] for tensor in x] for x in columns[:2])
            yield estimate(weights, grads, sums, firsts, scalars)
            estimators = []
        elif self._compiled is not None:
            factors = _row_factors(scalars, decay)
            rest, found = self._compiled([*columns, *estimators], factors)
            columns, estimators = rest[:4], rest[4:]
            yield found
        for pieces in cut([*columns, *estimators]):
            if estimators:
                yield estimate(pieces[0], pieces[1], pieces[4], pieces[5], scalars)
            _adam(pieces[:4], scalars, decay)
        for weight, values in zip(table.weights, moved, strict=True):
            if not weight.is_contiguous():
                weight.copy_(values.view_as(weight))


def read_estimate(optimizer: torch.optim.Optimizer) -> float:
    """Return d; waits for the device, so ask where metrics are read and not in a step."""
    return float(optimizer.param_groups[0]["d"])


def scalars_of(group: dict[str, Any], lr: float) -> Scalars:
    """Return the numbers of a step; d stays on the device."""
    beta1, beta2 = group["betas"]
    beta3 = beta2**0.5 if group["beta3"] is None else group["beta3"]
    correction = 1.0
    if group["use_bias_correction"]:
        step = group["k"] + 1
        correction = (1 - beta2**step) ** 0.5 / (1 - beta1**step)
    d = group["d"].clone()
    rate = d * (lr * correction)
    weight_of_grad = (d if group["safeguard_warmup"] else rate) * (d / group["d0"])
    return Scalars((beta1, beta2, beta3), group["eps"], d, rate, weight_of_grad)


def estimate(
    weights: list[Tensor],
    grads: list[Tensor],
    sums: list[Tensor],
    firsts: list[Tensor],
    scalars: Scalars,
) -> Parts:
    """Change the weighted sums of gradients (flat pieces, any shape); return the parts of d."""
    ways = lists.sub(firsts, weights)
    products = [
        torch.dot(grad.flatten(), way.flatten()) for grad, way in zip(grads, ways, strict=True)
    ]
    lists.mul_(sums, scalars.betas[2])
    if _is_host(scalars.d):
        lists.add_(sums, grads, alpha=_read_host(scalars.weight_of_grad))
    else:
        factor = scalars.weight_of_grad.to(grads[0].dtype)
        lists.add_(sums, lists.mul(grads, factor))
    return products, [part.sum() for part in lists.abs(sums)]


def _adam(pieces: list[list[Tensor]], scalars: Scalars, weight_decay: float) -> None:
    """Move weights (flat pieces, with gradients and averages) by Adam on d * g at rate d * lr."""
    weights, grads, means, squares = pieces
    beta1, beta2, _ = scalars.betas
    if _is_host(scalars.d):
        d, rate = _read_host(scalars.d), _read_host(scalars.rate)
        apply_adamw(
            [weights, list(lists.mul(grads, d)), means, squares],
            lr=rate,
            betas=(beta1, beta2),
            eps=scalars.eps * d,
            weight_decay=weight_decay,
            step=_LONG_AGO,
        )
        return
    dtype = weights[0].dtype
    d, rate = scalars.d.to(dtype), scalars.rate.to(dtype)
    scaled = lists.mul(grads, d)
    lists.lerp_(means, scaled, 1 - beta1)
    lists.mul_(squares, beta2)
    lists.addcmul_(squares, scaled, scaled, 1 - beta2)
    roots = lists.sqrt(squares)
    lists.add_(roots, d * scalars.eps)
    lists.div_(roots, rate)
    lists.mul_(weights, 1 - rate * weight_decay)
    lists.addcdiv_(weights, means, roots, -1)


def adapt(group: dict[str, Any], scalars: Scalars, parts: list[Parts]) -> None:
    """Change the estimates, scalars on the device, from the parts of both sums."""
    d, d_max, total = (group[name] for name in ESTIMATES)
    numerator, denominator = (
        torch.stack([part for both in parts for part in both[side]]).to(d.dtype).sum()
        for side in (0, 1)
    )
    numerator *= scalars.rate * (d / group["d0"])
    has_gradient = denominator > 0
    total.copy_(torch.where(has_gradient, total * scalars.betas[2] + numerator, total))
    guess = torch.where(has_gradient, group["d_coef"] * total / denominator, d)
    start = torch.where(d == group["d0"], torch.maximum(d, guess), d)
    d_max.copy_(torch.maximum(d_max, guess))
    d.copy_(torch.minimum(d_max, start * group["growth_rate"]))


def _rule_of_rows(
    weights: Tensor,
    grads: Tensor,
    means: Tensor,
    squares: Tensor,
    sums: Tensor,
    firsts: Tensor,
    factors: Tensor,
) -> tuple[Tensor, Tensor]:
    """Do all of a step for rows of one tensor; the compiler makes one or two loops of it.

    All but `factors` are (rows, entries), any shape; the results are sums over entries, (rows,).
    """
    d, rate, weight_of_grad, eps, beta1, beta2, beta3, keep = factors.unbind()
    products = (grads * (firsts - weights)).sum(1)
    scaled = grads * d
    mean = beta1 * means + (1 - beta1) * scaled
    square = beta2 * squares + (1 - beta2) * scaled * scaled
    total = beta3 * sums + weight_of_grad * grads
    sizes = total.abs().sum(1)
    means.copy_(mean)
    squares.copy_(square)
    sums.copy_(total)
    weights.copy_(weights * keep - rate * mean / (square.sqrt() + eps))
    return products, sizes


def _row_factors(scalars: Scalars, weight_decay: float) -> Tensor:
    """Return the numbers of `_rule_of_rows` as one tensor on the device, a scalar each."""
    d, rate = scalars.d, scalars.rate
    fixed = [torch.full_like(d, beta) for beta in scalars.betas]
    keep = 1 - rate * weight_decay
    return torch.stack([d, rate, scalars.weight_of_grad, d * scalars.eps, *fixed, keep])


def _complete(state: dict[str, Any] | None, weight: Tensor) -> None:
    """Fill in what prodigyopt leaves out for a weight (any shape) that started as zeros."""
    if not state:
        return
    if state["p0"].dim() == 0:
        state["p0"] = torch.zeros_like(state["s"])
    if "exp_avg" not in state:
        state["exp_avg"] = torch.zeros_like(weight, memory_format=torch.contiguous_format)
    for name in ("exp_avg", "exp_avg_sq"):
        state[name] = state[name].contiguous()


def _flatten(tensors: list[Tensor]) -> list[Tensor]:
    """View tensors of any shape as flat ones; copies those that are not in one piece."""
    return [tensor.reshape(-1) for tensor in tensors]


def _is_host(scalar: Tensor) -> bool:
    return scalar.device.type == "cpu"


def _read_host(scalar: Tensor) -> float:
    """Return a scalar of a CPU: its memory is the host's, so there is nothing to wait for."""
    return float(scalar.numpy())

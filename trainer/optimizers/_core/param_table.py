"""Optimizers over tables of tensors: the bookkeeping that all rules of this house share.

A rule sees lists of flat pieces. On a CPU the pieces are small enough to stay in the cache while
all operations of the rule pass over them, so memory is read and written once a step; elsewhere they
are whole tensors, and every call of `_lists` is one launch for all of them. The host never
asks the device for a number.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.core.errors import ConfigError
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.deferred_found_inf import LateVerdict
from trainer.optimizers._core.found_inf import OPEN, Gate
from trainer.optimizers._core.native import NativeRule

CPU_PIECE = 1 << 18
"""Entries that a CPU works on at once; measured by benchmarks/measure_optimizers.py, 2**14 to
2**20."""
DEVICE_PIECES = 1 << 25
"""Entries of a launch elsewhere; bounds temporary memory to 128 MiB a temporary in float32."""

GATED_DEVICES = {"cuda"}
"""Where a step that is not to count is shut off by the device; elsewhere asking costs no more."""

Pieces = list[list[Tensor]]


@dataclass(frozen=True)
class Table:
    """Tensors of one group, device, dtype and age, each with its gradient and state.

    `step` counts from 1. Rows of `states` follow the order of `weights`; any shape.
    """

    group: dict[str, Any]
    weights: list[Tensor]
    grads: list[Tensor]
    states: list[dict[str, Any]]
    step: int
    gate: Gate

    def add(self, weight: Tensor, grad: Tensor, state: dict[str, Any]) -> None:
        """Add a row; any shape."""
        self.weights.append(weight)
        self.grads.append(grad)
        self.states.append(state)

    def column(self, name: str) -> list[Tensor]:
        """Return one state tensor of every weight."""
        return [state[name] for state in self.states]

    def is_dense(self, *names: str) -> bool:
        """Whether every tensor lies in one piece of memory, in the order of its entries."""
        columns = [self.weights, self.grads, *(self.column(name) for name in names)]
        return all(tensor.is_contiguous() for column in columns for tensor in column)

    def apply(self, rule: NativeRule, names: Sequence[str], numbers: Sequence[float]) -> None:
        """Apply a compiled rule to weights, gradients and the named states."""
        columns = [self.weights, self.grads, *(self.column(name) for name in names)]
        rule(columns, torch.tensor(numbers, dtype=torch.float64))

    def pieces(self, *names: str) -> Iterator[Pieces]:
        """Yield lists of flat pieces: weights, gradients, then the named states."""
        yield from cut([self.weights, self.grads, *(self.column(name) for name in names)])


class TableOptimizer(torch.optim.Optimizer):
    """Base of our optimizers; a subclass says what state a weight needs and how tables change.

    A step is left out where `found_inf` is 1: torch's protocol with GradScaler, who sets it, and
    `grad_scale`, for the time of a step.

    Raises:
        ConfigError: a weight is neither float32 nor float64.
    """

    _step_supports_amp_scaling = True
    _late: LateVerdict | None = None

    def __init__(self, param_groups: list[dict[str, Any]], defaults: dict[str, Any]) -> None:
        super().__init__(param_groups, defaults)
        for group in self.param_groups:
            for weight in group["params"]:
                _check_dtype(weight, type(self).__name__)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all weights that have a gradient; return what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        verdict: Tensor | None = getattr(self, "found_inf", None)
        self._settle(verdict)
        if verdict is None:
            self.update(self._all_tables(OPEN))
        elif verdict.device.type in GATED_DEVICES:
            self._update_behind_gate(verdict)
        elif not verdict:
            self.update(self._all_tables(OPEN))
        return loss

    def _update_behind_gate(self, verdict: Tensor) -> None:
        """Update where a verdict (a scalar) of 0 says so; the host learns it at the next step."""
        tables = self._all_tables(Gate(verdict))
        self._late = self._late or LateVerdict(verdict.device)
        self._late.counted += [state for table in tables for state in table.states]
        with self._late.noting(self.param_groups, verdict):
            self.update(tables)

    def _all_tables(self, gate: Gate) -> list[Table]:
        tables = [table for group in self.param_groups for table in self._tables(group, gate)]
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if scale is not None:
            for table in tables:
                lists.scale_(table.grads, scale.to(table.grads[0].dtype).reciprocal())
        return tables

    def _settle(self, verdict: Tensor | None = None) -> None:
        """Take back what the host counted in the last step if the device left it out.

        A step may come in several parts, under one verdict (a scalar).
        """
        if self._late is not None and self._late.verdict is not verdict:
            self._late.settle(self.param_groups)

    def state_dict(self) -> dict[str, Any]:
        """Return the state with counts that hold."""
        self._settle()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return super().__getstate__()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; what the code that wrote it does not know keeps its value."""
        self._late = None
        own = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, before in zip(self.param_groups, own, strict=True):
            group.update({name: before[name] for name in before.keys() - group.keys()})

    def fresh_state(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """Return the state that a weight starts with; any shape."""
        raise NotImplementedError

    def update(self, tables: list[Table]) -> None:
        """Change weights and states; most rules know no more than one table."""
        for table in tables:
            self.update_table(table)

    def update_table(self, table: Table) -> None:
        """Change the weights and states of one table."""
        raise NotImplementedError

    def _tables(self, group: dict[str, Any], gate: Gate) -> list[Table]:
        tables: dict[tuple[torch.device, torch.dtype, int], Table] = {}
        for weight in group["params"]:
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                raise ConfigError(
                    f"{type(self).__name__} cannot use sparse gradients. Choose an embedding "
                    "with sparse=False."
                )
            state = self.state[weight]
            if "step" not in state:
                state.update({"step": 0} | self.fresh_state(weight, group))
            state["step"] += 1
            key = (weight.device, weight.dtype, state["step"])
            table = tables.setdefault(key, Table(group, [], [], [], state["step"], gate))
            table.add(weight, weight.grad, state)
        return list(tables.values())


def cut(columns: Sequence[Sequence[Tensor]]) -> Iterator[Pieces]:
    """Cut equally long columns of tensors of any shape into lists that are worked on at once.

    Tensors that do not lie in one piece of memory stay whole.
    """
    for _, pieces in cut_rows(columns):
        yield pieces


def cut_rows(columns: Sequence[Sequence[Tensor]]) -> Iterator[tuple[list[int], Pieces]]:
    """As `cut` (any shape), with the row that every piece comes from."""
    if not columns[0]:
        return
    limit = CPU_PIECE if columns[0][0].device.type == "cpu" else DEVICE_PIECES
    small: list[int] = []
    size = 0
    for number, row in enumerate(zip(*columns, strict=True)):
        if row[0].numel() > limit // 2:
            for pieces in _pieces_of_row(row, limit):
                yield [number], [[piece] for piece in pieces]
            continue
        small.append(number)
        size += row[0].numel()
        if size > limit // 2:
            yield small, [[column[row] for row in small] for column in columns]
            small, size = [], 0
    if small:
        yield small, [[column[row] for row in small] for column in columns]


def _pieces_of_row(row: Sequence[Tensor], length: int) -> Iterator[Sequence[Tensor]]:
    is_cpu = row[0].device.type == "cpu"
    if not is_cpu or row[0].numel() <= length or not all(x.is_contiguous() for x in row):
        return iter((row,))
    # Nothing here is differentiated, so the cheap form of split is safe.
    return zip(*(torch.unsafe_split(tensor.view(-1), length) for tensor in row), strict=True)


def _check_dtype(weight: Tensor, name: str) -> None:
    if weight.dtype not in (torch.float32, torch.float64):
        kind = str(weight.dtype).removeprefix("torch.")
        raise ConfigError(
            f"{name} trains float32 weights, but one is {kind}: small updates would be rounded "
            "away. Load the weights in float32 and use mixed precision to save time and memory."
        )

"""The base class of this project's own optimizers, and the tables of tensors they update.

A rule sees lists of flat pieces. On a CPU the pieces are small enough to stay in the cache while
all operations of a rule pass over them, so memory is read and written once per step. On a GPU they
are whole tensors, and every call of `_lists` is one launch for all of them. The host never reads
a number from the device.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from trainer.core.errors import ConfigError
from trainer.optimizers._core import foreach as lists
from trainer.optimizers._core.deferred_found_inf import DeferredFoundInf
from trainer.optimizers._core.found_inf import OPEN, StepGate
from trainer.optimizers._core.param_groups import Group, StateDict
from trainer.optimizers._core.shared_options import group_defaults

CPU_PIECE = 1 << 18
"""Entries per piece on a CPU: the fastest of 2**14 to 2**20 in benchmarks/measure_optimizers.py."""
DEVICE_PIECES = 1 << 25
"""Entries per launch on other devices; bounds each float32 temporary to 128 MiB."""

GATED_DEVICES = {"cuda"}
"""Devices that skip a step by themselves; on others the host can read `found_inf` cheaply."""

Pieces = list[list[Tensor]]


@dataclass(frozen=True)
class ParamTable:
    """Tensors of one group, device, dtype and step count, each with its gradient and state.

    `step` counts from 1. `states` is in the order of `weights`; tensors have any shape.
    """

    group: Group
    weights: list[Tensor]
    grads: list[Tensor]
    states: list[dict[str, Tensor]]
    step: int
    gate: StepGate

    def add(self, weight: Tensor, grad: Tensor, state: dict[str, Tensor]) -> None:
        """Add a weight with its gradient and state."""
        self.weights.append(weight)
        self.grads.append(grad)
        self.states.append(state)

    def split(self, belongs: Callable[[Tensor], bool]) -> "tuple[ParamTable, ParamTable]":
        """Return a table of the weights (any shape) that belong and a table of the others."""
        inside, outside = (
            ParamTable(self.group, [], [], [], self.step, self.gate) for _ in range(2)
        )
        for weight, grad, state in zip(self.weights, self.grads, self.states, strict=True):
            (inside if belongs(weight) else outside).add(weight, grad, state)
        return inside, outside

    def column(self, name: str) -> list[Tensor]:
        """Return one state tensor per weight."""
        return [state[name] for state in self.states]

    def pieces(self, *names: str, whole: bool = False) -> Iterator[Pieces]:
        """Yield lists of flat pieces: weights, gradients, then the named states.

        With `whole`, yield all tensors at once, for rules that need all entries of one.
        """
        columns = [self.weights, self.grads, *(self.column(name) for name in names)]
        yield from [columns] if whole else cut(columns)


class TableOptimizer(torch.optim.Optimizer):
    """Base class: a subclass defines the state of a weight and how a table is updated.

    A step is skipped where `found_inf` is 1. This is torch's protocol with GradScaler, which sets
    `found_inf` and `grad_scale` for the duration of a step.

    Raises:
        ConfigError: a weight is neither float32 nor float64.
    """

    # GradScaler looks for this name and then leaves unscaling and skipping to `step`.
    _step_supports_amp_scaling = True
    _late: DeferredFoundInf | None = None

    states: tuple[str, ...] = ()
    """Names of the states of a weight."""
    default_lr: float
    """The learning rate where neither the user nor the model family chooses one."""

    def __init__(self, param_groups: list[Group], defaults: Group) -> None:
        super().__init__(param_groups, defaults)
        for group in self.param_groups:
            for weight in group["params"]:
                _check_dtype(weight, type(self).__name__)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all weights that have a gradient; return what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        verdict: Tensor | None = getattr(self, "found_inf", None)
        self._undo_skipped_step(verdict)
        if verdict is None:
            self.update(self._all_tables(OPEN))
        elif verdict.device.type in GATED_DEVICES:
            self._update_gated(verdict)
        # On a CPU, reading the flag waits for nothing.
        elif not verdict:
            self.update(self._all_tables(OPEN))
        return loss

    def _update_gated(self, verdict: Tensor) -> None:
        """Update unless `verdict` (a scalar) is 1; the host learns its value at the next step."""
        tables = self._all_tables(StepGate(verdict))
        self._late = self._late or DeferredFoundInf(verdict.device)
        self._late.counted += [state for table in tables for state in table.states]
        with self._late.recording(self.param_groups, verdict):
            self.update(tables)

    def _all_tables(self, gate: StepGate) -> list[ParamTable]:
        tables = [table for group in self.param_groups for table in self._tables(group, gate)]
        scale: Tensor | None = getattr(self, "grad_scale", None)
        if scale is not None:
            for table in tables:
                lists.scale_(table.grads, scale.to(table.grads[0].dtype).reciprocal())
        return tables

    def _undo_skipped_step(self, verdict: Tensor | None = None) -> None:
        """Undo the host's counts of the last step if the device skipped it.

        A step may run in several parts, all with the same `verdict` tensor (a scalar).
        """
        if self._late is not None and self._late.verdict is not verdict:
            self._late.undo_if_skipped(self.param_groups)

    def state_dict(self) -> StateDict:
        """Return the state with exact step counts."""
        self._undo_skipped_step()
        return super().state_dict()

    def __getstate__(self) -> StateDict:
        self._undo_skipped_step()
        return super().__getstate__()

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Load a state; options that its writer did not save keep their current values."""
        # A pending correction belongs to the state that is being replaced.
        self._late = None
        own = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, before in zip(self.param_groups, own, strict=True):
            group.update({name: before[name] for name in before.keys() - group.keys()})

    @classmethod
    def build(cls, param_groups: list[Group], options: object, device: torch.device) -> Self:
        """Return the optimizer; its options become the defaults of the groups."""
        return cls(param_groups, group_defaults(options, cls.default_lr))

    def state_names(self, weight: Tensor) -> tuple[str, ...]:
        """Return the names of the states of a weight of any shape."""
        return self.states

    def fresh_state(self, weight: Tensor, group: Group) -> dict[str, Tensor]:
        """Return the initial state of a weight of any shape: zeros, in most rules."""
        return {name: torch.zeros_like(weight) for name in self.state_names(weight)}

    def update(self, tables: list[ParamTable]) -> None:
        """Update weights and states; most rules handle each table on its own."""
        for table in tables:
            self.update_table(table)

    def update_table(self, table: ParamTable) -> None:
        """Update the weights and states of one table."""
        raise NotImplementedError

    def _tables(self, group: Group, gate: StepGate) -> list[ParamTable]:
        tables: dict[tuple[torch.device, torch.dtype, int], ParamTable] = {}
        for weight in group["params"]:
            if weight.grad is None:
                continue
            if weight.grad.is_sparse:
                raise ConfigError(
                    f"{type(self).__name__} does not support sparse gradients. Create embeddings "
                    "with sparse=False."
                )
            state = self.state[weight]
            if "step" not in state:
                state.update({"step": 0} | self.fresh_state(weight, group))
            state["step"] += 1
            # Weights that got their first gradient later have another step, and so other bias
            # corrections; each table has a single one.
            key = (weight.device, weight.dtype, state["step"])
            table = tables.setdefault(key, ParamTable(group, [], [], [], state["step"], gate))
            table.add(weight, weight.grad, state)
        return list(tables.values())


def cut(columns: Sequence[Sequence[Tensor]]) -> Iterator[Pieces]:
    """Cut columns of equal length (tensors of any shape) into lists of pieces to process together.

    Tensors that are not contiguous stay whole.
    """
    for _, pieces in cut_rows(columns):
        yield pieces


def cut_rows(columns: Sequence[Sequence[Tensor]]) -> Iterator[tuple[list[int], Pieces]]:
    """Yield as `cut` does, with the row that each piece comes from."""
    if not columns[0]:
        return
    # Small tensors are collected until they fill half a piece, so a list of them never exceeds the
    # limit; larger ones are handled on their own.
    limit = CPU_PIECE if columns[0][0].device.type == "cpu" else DEVICE_PIECES
    small: list[int] = []
    size = 0
    for number, row in enumerate(zip(*columns, strict=True)):
        if row[0].numel() > limit // 2:
            for pieces in pieces_of_row(row, limit):
                yield [number], [[piece] for piece in pieces]
            continue
        small.append(number)
        size += row[0].numel()
        if size > limit // 2:
            yield small, [[column[row] for row in small] for column in columns]
            small, size = [], 0
    if small:
        yield small, [[column[row] for row in small] for column in columns]


def pieces_of_row(row: Sequence[Tensor], length: int) -> Iterator[Sequence[Tensor]]:
    """Cut tensors of one shape into flat pieces of a length, if they are contiguous on a CPU."""
    is_cpu = row[0].device.type == "cpu"
    if not is_cpu or row[0].numel() <= length or not all(x.is_contiguous() for x in row):
        return iter((row,))
    # unsafe_split skips autograd bookkeeping, which nothing here needs.
    return zip(*(torch.unsafe_split(tensor.view(-1), length) for tensor in row), strict=True)


def _check_dtype(weight: Tensor, name: str) -> None:
    if weight.dtype not in (torch.float32, torch.float64):
        kind = str(weight.dtype).removeprefix("torch.")
        raise ConfigError(
            f"{name} trains float32 weights, but one of them is {kind}, so small updates would be "
            "rounded away. Load the weights in float32 and use mixed precision to save time and "
            "memory."
        )

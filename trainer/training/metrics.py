"""Turn the metrics of a step into StepDone events, reading device values one step late."""

import time
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

from trainer.callbacks.step_timer import Lap, OptimizerTimer, StepTimer, seconds_by_part
from trainer.core import metrics as names
from trainer.core.device import GIB, DeviceUse, read_use_or_none
from trainer.core.events import Emit, StepDone
from trainer.core.metrics import GRAD_NORM
from trainer.core.train_state import TrainState
from trainer.training.nan_recovery import NanRecovery

_DEVICE_INTERVAL_S = 2.0  # chosen by hand: a chart needs no more, and a driver query takes a moment
_PARTS = {"data": names.DATA_WAIT_S, "forward": names.FORWARD_S, "backward": names.BACKWARD_S}
"""Metrics for the parts of a step. The optimizer's time comes from its hooks."""


@dataclass
class _Pending:
    step: int
    names: list[str]
    values: Tensor
    ready: "torch.cuda.Event | None"
    facts: dict[str, float]
    lap: Lap | None
    parts: list[tuple[str, Lap]]


class StepMetrics:
    """Measures steps without making the device wait for the host.

    The values of step N are copied to the host asynchronously and read after step N + 1 was
    queued, so the device always has work.
    """

    def __init__(self, state: TrainState, emit: Emit) -> None:
        self._state = state
        self._emit = emit
        self._nan_recovery = NanRecovery(state, emit)
        self._pending: _Pending | None = None
        self._process = psutil.Process()
        self._optimizer_timer = OptimizerTimer(state.optimizer, state.device)
        self._step_timer = StepTimer(state.device)
        self.begin_part = self._step_timer.begin_part
        self._device_read_at = 0.0
        self._last = time.monotonic()
        self._cpu_last = time.process_time()
        self._waited_s = state.train_batches.waited_s
        self._trained_s = float(state.progress.get("trained_s", 0.0))

    def record(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Record the metrics of a step: loss terms and GRAD_NORM, scalars on the device."""
        self.begin_part("rest")
        pending = self._copy(step, tensors)
        self._read()
        self._pending = pending
        # On a CPU nothing runs asynchronously, so there is no reason to wait a step.
        if self._state.device.type == "cpu":
            self._read()

    def flush(self) -> None:
        """Read the pending step, so that an action between steps sees all metrics."""
        self._read()
        self._state.progress["trained_s"] = self._trained_s

    @property
    def is_last_step_applied(self) -> bool:
        """Whether the last step updated the weights; otherwise no checkpoint should be saved."""
        return not self._state.progress.get("skipped_in_a_row")

    def restart_timer(self) -> None:
        """Exclude the time since the last step from the next step's duration."""
        self._last, self._cpu_last = time.monotonic(), time.process_time()

    def _copy(self, step: int, tensors: dict[str, Tensor]) -> _Pending:
        names = list(tensors)
        # One stacked copy instead of one transfer for each metric.
        values = torch.stack([tensors[name].detach().float() for name in names])
        ready = None
        if values.device.type == "cuda":
            # Only a copy into pinned memory is asynchronous.
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            ready, values = torch.cuda.Event(), host
            ready.record()
        lap, parts = self._optimizer_timer.take(), self._step_timer.take()
        return _Pending(step, names, values, ready, self._facts(step), lap, parts)

    def _facts(self, step: int) -> dict[str, float]:
        """Return the metrics that the host knows without synchronizing with the device."""
        state = self._state
        waited_s = state.train_batches.waited_s
        facts = {
            names.LR: self._learning_rate(),
            names.EPOCH: step / state.train_batches.steps_per_epoch,
            names.DATA_WAIT_S: waited_s - self._waited_s,
            names.HOST_MEMORY_GIB: self._process.memory_info().rss / GIB,
        }
        self._waited_s = waited_s
        if state.optimizer_spec.effective_lr is not None:
            facts[names.LR_SCHEDULED] = float(state.optimizer.param_groups[0]["lr"])
        facts |= self._device_metrics()
        # The allocator's own counters: reading them needs no synchronization.
        if state.device.type == "cuda":
            facts[names.MEMORY_GIB] = torch.cuda.memory_allocated(state.device) / GIB
            facts[names.MEMORY_RESERVED_GIB] = torch.cuda.memory_reserved(state.device) / GIB
            facts[names.MEMORY_PEAK_GIB] = torch.cuda.max_memory_allocated(state.device) / GIB
        else:
            facts[names.MEMORY_GIB] = facts[names.HOST_MEMORY_GIB]
        return facts

    def _device_metrics(self) -> dict[str, float]:
        """Return utilization and temperature of the device, at most once per interval."""
        now = time.monotonic()
        if now - self._device_read_at < _DEVICE_INTERVAL_S:
            return {}
        self._device_read_at = now
        use = read_use_or_none(self._state.machine) or DeviceUse(0.0, 0.0)
        told = {
            names.UTILISATION_PERCENT: use.utilisation_percent,
            names.TEMPERATURE_C: use.temperature_c,
        }
        return {name: value for name, value in told.items() if value is not None}

    def _learning_rate(self) -> float:
        effective = self._state.optimizer_spec.effective_lr
        if effective is not None:
            return effective(self._state.optimizer)
        return float(self._state.optimizer.param_groups[0]["lr"])

    def _read(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        # In `record`, step N + 1 is queued by now, so the device has work while the host waits.
        if pending.ready is not None:
            pending.ready.synchronize()
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        self._trained_s += seconds
        values = dict(zip(pending.names, pending.values.tolist(), strict=True))
        grad_norm = values.pop(GRAD_NORM)
        loss = sum(values.values())
        metrics = {names.TRAIN_LOSS: loss, names.GRAD_NORM: grad_norm, names.S_PER_STEP: seconds}
        metrics |= {names.train_part(name): value for name, value in values.items()}
        metrics |= pending.facts
        if self._state.device.type == "cpu":
            cpu_now = time.process_time()
            metrics[names.CPU_S_PER_STEP] = cpu_now - self._cpu_last
            self._cpu_last = cpu_now
        parts = seconds_by_part(pending.parts)
        metrics |= {name: parts[part] for part, name in _PARTS.items() if part in parts}
        if pending.lap is not None:
            metrics[names.OPTIMIZER_S] = pending.lap.seconds()
        # Two reads may share one clock tick; 1e-9 only prevents a division by zero.
        audio_s = self._state.train_batches.audio_s_of_step(pending.step)
        metrics[names.AUDIO_S_PER_S] = audio_s / max(seconds, 1e-9)
        # A NaN loss (the only value unequal to itself) is always logged.
        if pending.step % self._state.config.training.log_every == 0 or loss != loss:
            self._emit(StepDone(pending.step, metrics))
        self._nan_recovery.record(pending.step, loss, grad_norm)

"""Meter: turns what a step leaves on the device into StepDone events, read one step late."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

from trainer.errors import TimbreError
from trainer.events import Event, StepDone
from trainer.setup import Setup
from trainer.stopwatch import Lap, Stopwatch

_GIB = 1024**3


class LossNotFinite(TimbreError):
    """The loss became NaN or infinite; the weights after that step are lost."""

    exit_code = 20


@dataclass
class _Pending:
    step: int
    names: list[str]
    values: Tensor
    ready: "torch.cuda.Event | None"
    facts: dict[str, float]
    lap: Lap | None


class Meter:
    """Measures steps without making the device wait for the host.

    Values of step N are copied while step N + 1 is prepared, and read then.
    """

    def __init__(self, setup: Setup, emit: Callable[[Event], None]) -> None:
        self._setup = setup
        self._emit = emit
        self._pending: _Pending | None = None
        self._process = psutil.Process()
        self._stopwatch = Stopwatch(setup.optimizer, setup.device)
        self._last = time.monotonic()
        self._waited_s = setup.train_batches.waited_s
        self._trained_s = float(setup.progress.get("trained_s", 0.0))

    def step_done(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Take the metrics of a step: loss parts and `grad_norm`, scalars on the device."""
        pending = self._copy(step, tensors)
        self._read()
        self._pending = pending
        if self._setup.device.type == "cpu":
            self._read()

    def finish(self) -> None:
        """Read what is still pending, so that a deed between steps knows all of them."""
        self._read()
        self._setup.progress["trained_s"] = self._trained_s

    def restart(self) -> None:
        """Leave the time since the last step out of the next one's seconds."""
        self._last = time.monotonic()

    def _copy(self, step: int, tensors: dict[str, Tensor]) -> _Pending:
        names = list(tensors)
        values = torch.stack([tensors[name].detach().float() for name in names])
        ready = None
        if values.device.type == "cuda":
            host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            host.copy_(values, non_blocking=True)
            ready, values = torch.cuda.Event(), host
            ready.record()
        return _Pending(step, names, values, ready, self._facts(step), self._stopwatch.take())

    def _facts(self, step: int) -> dict[str, float]:
        """Return what the host knows of a step without asking the device."""
        setup = self._setup
        waited_s = setup.train_batches.waited_s
        facts = {
            "train/lr": self._learning_rate(),
            "train/epoch": step / setup.train_batches.steps_per_epoch,
            "perf/data_wait_s": waited_s - self._waited_s,
            "perf/host_memory_gib": self._process.memory_info().rss / _GIB,
            "perf/audio_s": setup.train_batches.audio_s_of_step(step),
        }
        self._waited_s = waited_s
        if setup.device.type == "cuda":
            facts["perf/memory_gib"] = torch.cuda.memory_allocated(setup.device) / _GIB
            facts["perf/memory_reserved_gib"] = torch.cuda.memory_reserved(setup.device) / _GIB
            facts["perf/memory_peak_gib"] = torch.cuda.max_memory_allocated(setup.device) / _GIB
        else:
            facts["perf/memory_gib"] = facts["perf/host_memory_gib"]
        return facts

    def _learning_rate(self) -> float:
        effective = self._setup.optimizer_spec.effective_lr
        if effective is not None:
            return effective(self._setup.optimizer)
        return float(self._setup.optimizer.param_groups[0]["lr"])

    def _read(self) -> None:
        pending, self._pending = self._pending, None
        if pending is None:
            return
        if pending.ready is not None:
            pending.ready.synchronize()
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        self._trained_s += seconds
        values = dict(zip(pending.names, pending.values.tolist(), strict=True))
        grad_norm = values.pop("grad_norm")
        loss = sum(values.values())
        metrics = {"train/loss": loss, "train/grad_norm": grad_norm, "perf/s_per_step": seconds}
        metrics |= {f"train/loss/{name}": value for name, value in values.items()}
        metrics |= pending.facts
        if pending.lap is not None:
            metrics["perf/optimizer_s"] = pending.lap.seconds()
        metrics["perf/audio_s_per_s"] = metrics.pop("perf/audio_s") / max(seconds, 1e-9)
        if pending.step % self._setup.config.training.log_every == 0 or loss != loss:
            self._emit(StepDone(pending.step, metrics))
        if loss != loss or loss in (float("inf"), float("-inf")):
            raise LossNotFinite(
                f"The loss became {loss} at step {pending.step}. No checkpoint was written after "
                "it. Resume from the last checkpoint with a lower learning rate, or with mixed "
                "precision off."
            )

"""Alerts: what a person should know of a run while it trains, found in its events, with a remedy.

As the guard of the first steps it watches events, not the loop. Each kind is told once, and again
only after it was over. Losses that are no numbers end the run by themselves.
"""

import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median

from trainer.device import free_disk_gib
from trainer.events import CheckpointSaved, Event, Notice, StepDone, ValidationDone

Emit = Callable[[Event], None]
_GIB = 2**30
_SMOOTHING = 0.98
_FAR = 1.5
"""Times its best that the smoothed loss must be, for `_LONG` steps in a row, to count as lost."""
_LONG = 200
_VALIDATIONS = 5
_FULL = 0.95
_SLOW = 1.5
_WINDOW = 100
_SAVES_LEFT = 3


class Alerts:
    """Passes events on and adds a Notice where something needs a person's eye.

    `total_gib` is the memory of the GPU, infinite without one; a run with `patience` stops by
    itself when it no longer improves.
    """

    def __init__(
        self,
        folder: Path,
        *,
        total_gib: float = math.inf,
        patience: int = 0,
        free_gib: Callable[[Path], float] = free_disk_gib,
    ) -> None:
        self._folder, self._free_gib = folder, free_gib
        self._patience, self._total_gib = patience, total_gib
        self._told: set[str] = set()
        self._loss = _SmoothLoss()
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._usual_s: float | None = None
        self._best_validation: tuple[float, int] = (math.inf, 0)
        self._without_gain = 0

    def watch(self, emit: Emit) -> Emit:
        """Return an `emit` that adds the alerts."""

        def emit_and_look(event: Event) -> None:
            emit(event)
            for notice in self._look(event):
                emit(notice)

        return emit_and_look

    def _look(self, event: Event) -> list[Notice]:
        match event:
            case StepDone():
                found = [self._divergence(event), self._slowness(event), self._full_memory(event)]
            case ValidationDone():
                found = [self._plateau(event)]
            case CheckpointSaved():
                found = [self._full_disk(event)]
            case _:
                found = []
        return [notice for notice in found if notice is not None]

    def _divergence(self, event: StepDone) -> Notice | None:
        loss = self._loss
        loss.add(event.step, event.metrics["train/loss"])
        text = (
            f"The smoothed loss has been far above its best for {_LONG} steps: {loss.value:.4g} "
            f"now, {loss.best:.4g} at step {loss.best_step}."
        )
        remedy = "Stop, and start a run from the best checkpoint with a lower learning rate."
        return self._once("divergence", loss.steps_far >= _LONG, "warning", text, remedy, event)

    def _slowness(self, event: StepDone) -> Notice | None:
        self._seconds.append(event.metrics["perf/s_per_step"])
        # The window is judged only when it is new as a whole: a median a step would cost more.
        if len(self._seconds) < _WINDOW or event.step % _WINDOW:
            return None
        now_s = median(self._seconds)
        self._usual_s = now_s if self._usual_s is None else self._usual_s
        text = f"A step takes {now_s:.3g} s; at first it took {self._usual_s:.3g} s."
        remedy = "See what else uses this machine, and whether the GPU is too hot."
        return self._once("slow", now_s > _SLOW * self._usual_s, "warning", text, remedy, event)

    def _full_memory(self, event: StepDone) -> Notice | None:
        peak_gib = event.metrics.get("perf/memory_peak_gib", 0.0)
        text = f"The peak of GPU memory is {peak_gib:.1f} of {self._total_gib:.1f} GiB."
        remedy = (
            "A longer batch may not fit: halve the batch size and double the accumulation, or tick "
            "gradient checkpointing."
        )
        is_full = peak_gib > _FULL * self._total_gib
        return self._once("memory", is_full, "warning", text, remedy, event)

    def _plateau(self, event: ValidationDone) -> Notice | None:
        loss = event.metrics["val/loss"]
        is_better = loss < self._best_validation[0]
        self._without_gain = 0 if is_better else self._without_gain + 1
        if is_better:
            self._best_validation = loss, event.step
        text = (
            f"The eval loss has not improved in {self._without_gain} validations; the best was "
            f"{self._best_validation[0]:.4g} at step {self._best_validation[1]}."
        )
        remedy = "Listen to the previews. Stop if they are good; the best checkpoint is kept."
        is_flat = self._without_gain >= _VALIDATIONS and not self._patience
        return self._once("plateau", is_flat, "info", text, remedy, event)

    def _full_disk(self, event: CheckpointSaved) -> Notice | None:
        free_gib, size_gib = self._free_gib(self._folder), event.size_bytes / _GIB
        text = f"{free_gib:.2g} GiB are free on the disk; a checkpoint takes {size_gib:.2g} GiB."
        remedy = "Free some space, or empty the trash on the Runs tab. Training goes on."
        is_low = free_gib < max(1.0, _SAVES_LEFT * size_gib)
        return self._once("disk", is_low, "warning", text, remedy, event)

    def _once(
        self,
        kind: str,
        is_so: bool,
        level: str,
        text: str,
        remedy: str,
        event: StepDone | ValidationDone | CheckpointSaved,
    ) -> Notice | None:
        if not is_so:
            self._told.discard(kind)
            return None
        if kind in self._told:
            return None
        self._told.add(kind)
        return Notice(level, text, remedy, event.step)


class _SmoothLoss:
    """The debiased average of the loss, its best value, and how long it has been far from it."""

    def __init__(self) -> None:
        self.value = math.inf
        self.best, self.best_step, self.steps_far = math.inf, 0, 0
        self._sum = self._weight = 0.0
        self._last_step = 0

    def add(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            return
        passed, self._last_step = step - self._last_step, step
        self._sum = _SMOOTHING * self._sum + (1 - _SMOOTHING) * loss
        self._weight = _SMOOTHING * self._weight + (1 - _SMOOTHING)
        self.value = self._sum / self._weight
        if self.value < self.best:
            self.best, self.best_step = self.value, step
        # Losses below zero (likelihoods) have no "times the best".
        is_far = self.best > 0 and self.value > _FAR * self.best
        self.steps_far = self.steps_far + passed if is_far else 0

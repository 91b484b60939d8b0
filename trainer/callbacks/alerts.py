"""Alert the user to divergence, plateaus, slow steps, full memory and a full disk.

Alerts are derived from the run's events, so the loop does not know about them. Each kind is raised
once, and again only after the condition has cleared. NaN losses are not handled here: the loop
skips such steps, and the run rolls back or stops.
"""

import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median

from trainer.core.device import GIB, free_disk_gib
from trainer.core.events import CheckpointSaved, Event, Notice, StepDone, ValidationDone
from trainer.core.metrics import MEMORY_PEAK_GIB, S_PER_STEP, TRAIN_LOSS, VAL_LOSS

# All thresholds below are chosen by hand: late enough that a healthy run is left alone.
_SMOOTHING = 0.98  # per step: an average over about 50 steps
# The loss has diverged when its average stays above 1.5 times its best for 200 steps. A short spike
# after a hard batch is over long before that.
_FAR = 1.5
_LONG = 200
_VALIDATIONS = 5  # without improvement; a tenth of the run apart, they span half of it
_FULL = 0.95  # of the GPU's memory: the allocator needs some room for longer batches
_SLOW = 1.5  # times the median of the first window
_WINDOW = 100  # steps whose median counts, so that a validation or a save in between does not
_SAVES_LEFT = 3  # the disk must have room for this many more checkpoints, and for 1 GiB


class Alerts:
    """A subscriber that returns a Notice when the user should look at something.

    `total_gib` is the memory of the GPU, infinite without one. A run with `patience` stops early
    by itself, so it gets no alert about a plateau.
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
        self._reported: set[str] = set()
        self._loss = _SmoothLoss()
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._usual_s: float | None = None
        self._best_validation: tuple[float, int] = (math.inf, 0)
        self._without_gain = 0

    def __call__(self, event: Event) -> list[Notice]:
        """Return the alerts that an event gives reason for."""
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
        loss.add(event.step, event.metrics[TRAIN_LOSS])
        text = (
            f"The smoothed loss has been far above its best for {_LONG} steps: {loss.value:.4g} "
            f"now, {loss.best:.4g} at step {loss.best_step}."
        )
        remedy = "Stop, and start a run from the best checkpoint with a lower learning rate."
        return self._once("divergence", loss.steps_far >= _LONG, "warning", text, remedy, event)

    def _slowness(self, event: StepDone) -> Notice | None:
        self._seconds.append(event.metrics[S_PER_STEP])
        # Once per full window: a median at every step would only cost time.
        if len(self._seconds) < _WINDOW or event.step % _WINDOW:
            return None
        now_s = median(self._seconds)
        # The first full window is the baseline; a median ignores the slow first steps in it.
        self._usual_s = now_s if self._usual_s is None else self._usual_s
        text = f"A step takes {now_s:.3g} s; at first it took {self._usual_s:.3g} s."
        remedy = "Check what else is using this machine, and whether the GPU is too hot."
        return self._once("slow", now_s > _SLOW * self._usual_s, "warning", text, remedy, event)

    def _full_memory(self, event: StepDone) -> Notice | None:
        peak_gib = event.metrics.get(MEMORY_PEAK_GIB, 0.0)
        text = f"Peak GPU memory is {peak_gib:.1f} of {self._total_gib:.1f} GiB."
        remedy = (
            "A longer batch may not fit: halve the batch size and double the gradient "
            "accumulation, or turn on gradient checkpointing."
        )
        is_full = peak_gib > _FULL * self._total_gib
        return self._once("memory", is_full, "warning", text, remedy, event)

    def _plateau(self, event: ValidationDone) -> Notice | None:
        loss = event.metrics[VAL_LOSS]
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
        free_gib, size_gib = self._free_gib(self._folder), event.size_bytes / GIB
        text = f"The disk has {free_gib:.2g} GiB free; a checkpoint takes {size_gib:.2g} GiB."
        remedy = "Free some space, or empty the trash on the Runs tab. Training continues."
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
            self._reported.discard(kind)
            return None
        if kind in self._reported:
            return None
        self._reported.add(kind)
        return Notice(level, text, remedy, event.step)


class _SmoothLoss:
    """A debiased moving average of the loss, its best value, and how long it has been far off."""

    def __init__(self) -> None:
        self.value = math.inf
        self.best, self.best_step, self.steps_far = math.inf, 0, 0
        self._sum = self._weight = 0.0
        self._last_step = 0

    def add(self, step: int, loss: float) -> None:
        if not math.isfinite(loss):
            return
        # Steps may be logged less often than once each, so count steps, not calls.
        passed, self._last_step = step - self._last_step, step
        # Dividing by the summed weights removes the bias to zero of the first steps, as Adam does.
        self._sum = _SMOOTHING * self._sum + (1 - _SMOOTHING) * loss
        self._weight = _SMOOTHING * self._weight + (1 - _SMOOTHING)
        self.value = self._sum / self._weight
        if self.value < self.best:
            self.best, self.best_step = self.value, step
        # A ratio to the best loss makes sense only if that loss is positive; likelihoods may not
        # be.
        is_far = self.best > 0 and self.value > _FAR * self.best
        self.steps_far = self.steps_far + passed if is_far else 0

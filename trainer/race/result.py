"""What a race reads from the folder of one of its runs."""

import json
import math
from dataclasses import dataclass

import numpy as np

from trainer.callbacks.instability import has_risen
from trainer.core import metrics
from trainer.core.events import RunFinished
from trainer.runs.metric_store import MetricStore
from trainer.runs.run import Run

_WARM_UP_STEPS = 5
"""Steps after a start that are not timed: caches fill and kernels are chosen. Chosen by hand."""


@dataclass(frozen=True)
class Result:
    """How a run ended and what it cost.

    state: `finished`; `diverged` (the loss is NaN or infinite, or rose by half); or `failed`.
    steps, seconds, losses: the validations, with their steps and the seconds of training alone.
        Validation, saving and previews are not counted, nor is the extra time of the first steps of
        a process, which is `warmup_s`.
    s_per_step, fast_s_per_step: median and lower quartile. Speeds are compared by the quartile,
        because other work on the machine can only make steps longer. On a CPU a step counts wall
        time or CPU time, whichever is less: other work increases the first, threads the second.
    optimizer_s: the optimizer's part of `s_per_step`.
    """

    state: str
    reason: str
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    losses: tuple[float, ...]
    first_loss: float
    s_per_step: float
    fast_s_per_step: float
    optimizer_s: float | None
    peak_memory_gib: float
    warmup_s: float
    validation_s: float
    wall_s: float

    @property
    def score(self) -> float:
        """The last validation loss; NaN for a run that diverged or failed."""
        return self.losses[-1] if self.state == "finished" and self.losses else math.nan


def read_result(run: Run) -> Result | None:
    """Return the result of a run that ended; None if it is running, stopped or killed."""
    series = run.series()
    # A stopped run will be continued, so it has no result yet.
    if series.finished is None or series.finished.outcome == "stopped" or run.is_owned():
        return None
    losses = _column(series, metrics.TRAIN_LOSS)
    state, reason = _end_of(series, losses)
    seconds, (fast_s, s_per_step), warmup_s = _training_seconds(series)
    validations = series.validations
    val_steps = validations.array("step") if validations.count else np.zeros(0)
    reached = np.searchsorted(series.steps.array("step"), val_steps) if losses.size else val_steps
    memory = _column(series, metrics.MEMORY_PEAK_GIB)
    # On a CPU there is no GPU peak; the memory of the process stands in.
    memory = memory if memory.size else _column(series, metrics.HOST_MEMORY_GIB)
    return Result(
        state=state,
        reason=reason,
        steps=tuple(int(step) for step in val_steps),
        seconds=tuple(float(seconds[int(row)]) for row in reached),
        losses=tuple(float(loss) for loss in _val_losses(series)),
        first_loss=float(losses[0]) if losses.size else math.nan,
        s_per_step=s_per_step,
        fast_s_per_step=fast_s,
        optimizer_s=_optimizer_s(series, s_per_step),
        peak_memory_gib=float(np.nanmax(memory)) if memory.size else math.nan,
        warmup_s=warmup_s,
        validation_s=_validation_s(series),
        wall_s=_wall_s(run),
    )


def _column(series: MetricStore, name: str) -> np.ndarray:
    return series.steps.array(name) if name in series.steps.columns else np.zeros(0)


def _val_losses(series: MetricStore) -> np.ndarray:
    points = series.validations
    return points.array(metrics.VAL_LOSS) if points.count else np.zeros(0)


def _end_of(series: MetricStore, losses: np.ndarray) -> tuple[str, str]:
    assert series.finished is not None
    # Before `failed`: a run that the NaN check ended failed because it diverged.
    if losses.size and not math.isfinite(losses[-1]):
        return "diverged", f"The loss was NaN or infinite at step {series.last_step}."
    if series.finished.outcome == "failed":
        return "failed", series.finished.reason
    # A run with finite losses can be lost, too; ordinary runs are checked in the same way.
    if has_risen(losses.tolist()):
        return "diverged", "The training loss ended far above where it started."
    val_losses = _val_losses(series)
    if not val_losses.size:
        return (
            "failed",
            "There were no validations. Give an eval CSV, or set the eval share above 0.",
        )
    if not math.isfinite(val_losses[-1]):
        return "diverged", "The last validation loss was NaN or infinite."
    return "finished", ""


def _training_seconds(series: MetricStore) -> tuple[np.ndarray, tuple[float, float], float]:
    """Return seconds trained after each step, quartile and median per step, and warm-up seconds."""
    measured = _step_seconds(series)
    if not measured.size:
        return measured, (math.nan, math.nan), 0.0
    steps = series.steps.array("step")
    starts = [mark.step for mark in series.marks if mark.kind == "started"]
    is_warm = np.ones(len(steps), dtype=bool)
    for start in starts:
        # Every start counts, because a resumed process compiles and fills its caches again.
        is_warm &= (steps <= start) | (steps > start + _WARM_UP_STEPS)
    fast, usual = np.percentile(measured[is_warm] if is_warm.any() else measured, [25, 50])
    counted = np.where(is_warm, measured, np.minimum(measured, usual))
    return np.cumsum(counted), (float(fast), float(usual)), float((measured - counted).sum())


def _step_seconds(series: MetricStore) -> np.ndarray:
    """Return the seconds of every step, (steps,)."""
    # fmin ignores NaN, so a step without CPU time counts its wall time.
    by_clock, by_processor = (
        _column(series, name) for name in (metrics.S_PER_STEP, metrics.CPU_S_PER_STEP)
    )
    return np.fmin(by_clock, by_processor) if by_processor.size else by_clock


def _optimizer_s(series: MetricStore, s_per_step: float) -> float | None:
    """Return the optimizer's part of `s_per_step`, by its share of the wall time of a step."""
    spent, whole = (_column(series, name) for name in (metrics.OPTIMIZER_S, metrics.S_PER_STEP))
    if not spent.size or not np.isfinite(spent).any():
        return None
    # Share times step time, because `s_per_step` may be CPU time while laps are wall time; 1e-9
    # only prevents a division by zero.
    return s_per_step * float(np.nanmedian(spent / np.maximum(whole, 1e-9)))


def _validation_s(series: MetricStore) -> float:
    """Return the median seconds of a validation, from the end of its step to its own end."""
    if not series.validations.count or not series.steps.count:
        return 0.0
    ended = dict(zip(series.steps.array("step"), series.steps.array("time"), strict=True))
    steps, times = series.validations.array("step"), series.validations.array("time")
    spans = [time - ended[step] for step, time in zip(steps, times, strict=True) if step in ended]
    return float(np.median(spans)) if spans else 0.0


def _wall_s(run: Run) -> float:
    """Return the total lifetime (s) of a run's processes, from its log and its last start."""
    total, before, is_over = 0.0, None, True
    for logged in run.events.follow():
        if before is not None and not is_over:
            total += max(0.0, logged.time - before)
        before, is_over = logged.time, isinstance(logged.event, RunFinished)
    return total + _start_up_s(run)


def _start_up_s(run: Run) -> float:
    """Return the seconds from the last start to the first event of that process."""
    try:
        spawned = json.loads((run.folder / "control" / "spawned.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return 0.0
    times = (logged.time for logged in run.events.follow())
    first = next((time for time in times if time >= spawned["started_at"]), None)
    return first - spawned["started_at"] if first is not None else 0.0

"""Describe events and progress in lines of text for a terminal."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping

from trainer.core import metrics
from trainer.core.events import (
    CheckpointSaved,
    Event,
    Notice,
    PhaseChanged,
    PlanChanged,
    PreviewMade,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)


def describe_event(event: Event) -> str | None:
    """Return an event as a line of text, or None if there is nothing to show."""
    match event:
        case PhaseChanged():
            return f"{event.phase} {event.done}/{event.total}" if event.total else event.phase
        # Optimizations are listed as measured on the assembled model, not as requested.
        case RunStarted():
            on = [name for name, state in event.optimizations.items() if state["on"]]
            return f"Training from step {event.first_step} to {event.last_step}; on: {on or 'none'}"
        case StepDone():
            names = (metrics.TRAIN_LOSS, metrics.S_PER_STEP, metrics.MEMORY_GIB)
            return "  ".join([f"step {event.step}", *describe_metrics(event.metrics, names)])
        case ValidationDone():
            measured = describe_metrics(event.metrics, [metrics.VAL_LOSS])
            return "  ".join([f"step {event.step}", *measured])
        case CheckpointSaved():
            return f"step {event.step}  saved {event.path}{' (best)' if event.best else ''}"
        case PreviewMade():
            return f"step {event.step}  preview {event.path}"
        case PlanChanged():
            return f"step {event.step}  the run now goes to step {event.last_step}"
        case Notice():
            return f"{event.level}: {event.text} {event.remedy}"
        case RunFinished():
            return f"{event.outcome} at step {event.step} {event.reason} {event.remedy}".strip()
    return None


def describe_metrics(values: Mapping[str, float], names: Iterable[str]) -> list[str]:
    """Return those of the named metrics that are known, such as `memory 1.25 GiB`."""
    return [
        f"{metric.label[:1].lower()}{metric.label[1:]} {values[metric.name]:.{metric.digits}g} "
        f"{metric.unit}".rstrip()
        for metric in map(metrics.describe_metric, names)
        if metric.name in values
    ]


def shown_progress() -> Callable[[str, int, int], None]:
    """Return a function that prints the progress of a long operation at most once a second."""
    # Only at a terminal, so that logs and pipes stay free of it; TIMBRE_PROGRESS overrides that.
    is_shown = sys.stderr.isatty() or "TIMBRE_PROGRESS" in os.environ
    told_at = time.monotonic()

    def show(phase: str, done: int, total: int) -> None:
        nonlocal told_at
        # One line a second: reading 100,000 clips would otherwise fill the terminal.
        if is_shown and time.monotonic() - told_at >= 1.0:
            told_at = time.monotonic()
            # stderr, because stdout may be JSON for another program.
            sys.stderr.write(f"{phase}: {done:,} of {total:,}\n")
            sys.stderr.flush()

    return show

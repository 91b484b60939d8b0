"""Describe a run's state for people; pure functions of RunStatus."""

from typing import Any

from trainer.core import metrics
from trainer.runs.status import RunStatus

Row = dict[str, Any]
"""What the page shows of a run, as JSON values."""
_ACTIONS = {
    "created": ("resume", "queue", "discard"),
    "starting": ("stop", "discard"),
    "running": ("preview", "save", "more", "stop", "discard"),
    "stalled": ("stop", "kill", "discard"),
    "stopping": ("kill",),
    "stopped": ("resume", "queue", "more", "listen", "discard"),
    "finished": ("more", "listen", "discard"),
    "failed": ("resume", "queue", "discard"),
    "interrupted": ("resume", "queue", "discard"),
}
_SYMBOLS = {
    "starting": "o",
    "running": "o",
    "stalled": "!",
    "stopping": "o",
    "stopped": "-",
    "finished": "+",
    "failed": "x",
    "interrupted": "!",
}


def actions(state: str) -> tuple[str, ...]:
    """Return the actions that are available in a state."""
    return _ACTIONS.get(state, ())


def duration_text(seconds: float | None) -> str:
    """Format a duration with at most two units: '45 s', '12 min', '3 h 05 min'."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"


def phase_text(status: RunStatus) -> str:
    """Return what an active process is doing between steps; empty if nothing to report."""
    if not status.is_active:
        return ""
    if status.phase and status.phase_total:
        return f"{status.phase} {status.phase_done}/{status.phase_total}"
    if status.phase:
        return status.phase
    return "Starting the training process" if status.state == "starting" else ""


def describe(status: RunStatus) -> Row:
    """Return what the page shows about a run's state, as JSON values."""
    total = max(status.total_steps, status.step)
    return {
        "name": status.name,
        "state": status.state,
        "symbol": _SYMBOLS.get(status.state, "."),
        "active": status.is_active,
        "step": status.step,
        "total_steps": status.total_steps,
        "percent": round(100 * status.step / total, 1) if total else 0.0,
        "phase": phase_text(status),
        "eta": f"{duration_text(status.eta_s)} left" if status.eta_s is not None else "",
        "reason": status.reason,
        "remedy": status.remedy,
        "actions": list(actions(status.state)),
        "created_at": round(status.created_at, 1),
        "updated_at": round(status.updated_at, 1),
        "steps_per_epoch": status.steps_per_epoch,
        "loss": status.metrics.get(metrics.TRAIN_LOSS),
        "s_per_step": status.metrics.get(metrics.S_PER_STEP),
    }

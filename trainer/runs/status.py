"""Derive the state of a run from its folder; it is never stored."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.core import metrics
from trainer.core.device import free_disk_gib
from trainer.core.errors import RunNotFound
from trainer.core.run_config import RunConfig
from trainer.runs.control import pending_requests
from trainer.runs.heartbeat import read_pulses
from trainer.runs.locks import is_owned
from trainer.runs.metric_store import MetricStore
from trainer.runs.process import was_just_spawned
from trainer.runs.restart_policy import RESUME, is_supervised

ACTIVE = ("starting", "running", "stalled", "stopping")
_LEAST_DISK_GIB = 0.02  # chosen by hand: no checkpoint fits into less
_FULL_DISK = (
    "The disk that holds this run is full. Training continues, but nothing is saved and events "
    "wait in memory.",
    "Free some space or empty the trash on the Runs tab.",
)
_STALL_REMEDY = (
    "log.txt shows where it hangs. If a disk or network share is slow, wait. Otherwise end it and "
    "press Resume to continue from the last checkpoint."
)
# The first steps are slow; the median of the last 200 ignores pauses. Both chosen by hand.
_ETA_AFTER, _ETA_STEPS = 10, 200


@dataclass(frozen=True)
class RunStatus:
    """A summary of a run for the page and the command line; `state` is derived, never stored.

    States: created, starting, running, stalled, stopping, stopped, finished, failed, interrupted.
    """

    name: str
    state: str
    step: int
    total_steps: int
    metrics: dict[str, float]
    phase: str
    phase_done: int
    phase_total: int
    eta_s: float | None
    steps_per_epoch: int
    reason: str
    remedy: str
    created_at: float
    updated_at: float
    optimizations: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        """Whether a process trains the run or is about to."""
        return self.state in ACTIVE


def derive_status(folder: Path, store: MetricStore, config: RunConfig | None) -> RunStatus:
    """Return the status of a run; `config` is needed only before its first start."""
    state, reason, remedy = derive_state(folder, store)
    started, phase = store.started, store.phase
    total = store.planned_steps or (config.training.steps if config is not None else 0) or 0
    return RunStatus(
        name=folder.name,
        state=state,
        step=store.last_step,
        total_steps=total,
        metrics=store.latest(),
        phase=phase.phase if phase else "",
        phase_done=phase.done if phase else 0,
        phase_total=phase.total if phase else 0,
        eta_s=_eta(store, total) if state == "running" else None,
        steps_per_epoch=started.steps_per_epoch if started else 0,
        reason=reason,
        remedy=remedy,
        created_at=_created_at(folder),
        updated_at=store.updated_at,
        optimizations=started.optimizations if started else {},
        facts=started.facts if started else {},
    )


def derive_state(folder: Path, store: MetricStore) -> tuple[str, str, str]:
    """Return the state of a run, its reason and a remedy; the last two may be empty."""
    if is_owned(folder):
        if {"stop", "kill"} & pending_requests(folder):  # before a stall: Stop answers one
            return "stopping", "", ""
        if stall := _stall(folder):
            return "stalled", stall, _STALL_REMEDY
        is_new = store.started is None or store.finished is not None
        has_begun = not is_new and store.steps.count > 0
        is_full = free_disk_gib(folder) < _LEAST_DISK_GIB
        reason, remedy = _FULL_DISK if is_full else ("", "")
        return ("running" if has_begun else "starting"), reason, remedy
    # The process may have logged its end and released the lock since the log was read.
    store.update()
    if was_just_spawned(folder, store.updated_at):
        return "starting", "", ""
    finished = store.finished
    if is_supervised(folder) and (finished is None or finished.outcome == "failed"):
        return "starting", "", ""
    if finished is not None:
        return finished.outcome, finished.reason, finished.remedy
    if store.offset == 0:  # no event was ever logged
        return "created", "", ""
    reason = "The training process ended unexpectedly (killed, or the machine went down)."
    return "interrupted", reason, RESUME


def _created_at(folder: Path) -> float:
    try:
        return (folder / "run.json").stat().st_mtime
    except FileNotFoundError:
        raise RunNotFound(f"The run {folder.name} was just moved away.") from None


def _stall(folder: Path) -> str:
    """Describe a training process that has stopped responding, or return ''."""
    for pulse in read_pulses(folder):
        if pulse.is_stalled and pulse.identity.is_alive:
            return (
                f"The training process {pulse.identity.pid} has shown no sign of life for "
                f"{pulse.age_s:.0f} s (limit: {pulse.limit_s:.0f} s)."
            )
    return ""


def _eta(store: MetricStore, total: int) -> float | None:
    if store.steps.count < _ETA_AFTER:
        return None
    recent = sorted(store.steps.finite(metrics.S_PER_STEP, _ETA_STEPS))
    if not recent:
        return None
    return max(0.0, (total - store.last_step) * float(recent[len(recent) // 2]))  # the median

"""List who receives the events of a training process, in order; a new subscriber is one line."""

import math
from collections.abc import Mapping, Sequence

from trainer.callbacks.alerts import Alerts
from trainer.callbacks.instability import InstabilityMonitor
from trainer.callbacks.replay_check import ReplayCheck
from trainer.core.events import Subscriber
from trainer.core.train_state import TrainState, World
from trainer.runs.heartbeat import Heartbeat
from trainer.runs.run import Run
from trainer.worker.event_writer import EventWriter

Columns = Mapping[str, Sequence[float]]
"""Metrics of logged steps by name, and their `step`."""


def process_subscribers(
    run: Run, world: World, heartbeat: Heartbeat, listen: Subscriber | None
) -> list[Subscriber]:
    """Return those that receive the events of a process from its start to its end."""
    # Every event counts as a sign of life, on every rank; only the main one reports them.
    found: list[Subscriber] = [heartbeat.receive]
    if world.is_main:
        found.append(EventWriter(run))
        if listen is not None:
            found.append(listen)
    return found


def training_subscribers(state: TrainState, logged: Columns, repeated: Columns) -> list[Subscriber]:
    """Return those that watch an assembled run while it trains, after the log has its events.

    `logged` holds the steps of earlier processes, `repeated` those that the run now repeats.
    """
    if not state.world.is_main:
        return []
    # Without a GPU there is no fixed amount of memory to warn about.
    total_gib = state.machine.memory_gib if state.device.type == "cuda" else math.inf
    return [
        Alerts(state.folder, total_gib=total_gib, patience=state.config.training.patience),
        InstabilityMonitor(state.folder, state.config, state.base_lr, logged),
        ReplayCheck(repeated, state.first_step),
    ]

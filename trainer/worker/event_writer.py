"""Write the events of a training process to the run's log, even while the disk is full."""

import logging
from contextlib import suppress

from trainer.checkpoints.checkpoint import prune
from trainer.core.events import (
    CheckpointSaved,
    Event,
    Notice,
    PhaseChanged,
    RunFinished,
    StepDone,
)
from trainer.runs.log_index import refresh_index
from trainer.runs.run import Run

_LOG = logging.getLogger("timbre")
_FREQUENT = (StepDone, PhaseChanged)  # too many for log.txt; events.jsonl has them


class EventWriter:
    """A subscriber that writes the events of the main process to the run's log.

    While the disk is full, events wait in memory and training continues. The first time this
    happens, all checkpoints but the latest and the best are deleted to free space.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._has_pruned = False
        self._most_waiting = 0

    def __call__(self, event: Event) -> list[Event]:
        """Log one event; return a notice once a full disk has space again."""
        self._run.events.append(event)
        if not isinstance(event, _FREQUENT):
            _LOG.info("%s", event)
        if isinstance(event, CheckpointSaved | RunFinished):
            refresh_index(self._run.events)  # so that a status finds what lies far back
        return self._handle_full_disk()

    def _handle_full_disk(self) -> list[Event]:
        events = self._run.events
        if events.num_waiting:
            if not self._has_pruned:
                self._has_pruned = True
                with suppress(OSError):  # a save in the background may be pruning too
                    prune(self._run.folder / "checkpoints", keep_last=1)
            self._most_waiting = max(self._most_waiting, events.num_waiting)
        elif self._most_waiting:
            lost = f" {events.num_lost} of them were lost." if events.num_lost else ""
            text = f"The disk was full: {self._most_waiting} events waited in memory.{lost}"
            self._most_waiting = 0
            remedy = f"Training continued. Free space on the disk that holds {self._run.folder}."
            return [Notice("warning", text, remedy)]
        return []

"""Telling: every event of a training process goes to its log, also through a disk that is full."""

import logging
from collections.abc import Callable
from contextlib import suppress

from trainer.checkpoints import prune
from trainer.events import Event, Notice, PhaseChanged, StepDone
from trainer.runs import Run
from trainer.setup import World

_LOG = logging.getLogger("timbre")
_FREQUENT = (StepDone, PhaseChanged)


class Teller:
    """Writes the events of the main process to the run's log and hands them to a listener.

    Events that a full disk does not take wait in memory, while training goes on. The first time
    older checkpoints make room, all but the newest and the best.
    """

    def __init__(self, run: Run, world: World, listen: Callable[[Event], None] | None) -> None:
        self._run = run
        self._is_silent = not world.is_main
        self._listen = listen
        self._has_pruned = False
        self._most_waiting = 0

    def __call__(self, event: Event) -> None:
        """Tell one event."""
        if self._is_silent:
            return
        self._run.events.append(event)
        if not isinstance(event, _FREQUENT):
            _LOG.info("%s", event)
        if self._listen is not None:
            self._listen(event)
        self._see_whether_full()

    def _see_whether_full(self) -> None:
        events = self._run.events
        if events.num_waiting:
            if not self._has_pruned:
                self._has_pruned = True
                with suppress(OSError):  # a save beside this may be pruning as well
                    prune(self._run.folder / "checkpoints", keep_last=1)
            self._most_waiting = max(self._most_waiting, events.num_waiting)
        elif self._most_waiting:
            lost = f" {events.num_lost} of them are lost." if events.num_lost else ""
            text = f"The disk was full: {self._most_waiting} events waited in memory.{lost}"
            self._most_waiting = 0
            remedy = f"Free space on the disk that holds {self._run.folder}. Training went on."
            self(Notice("warning", text, remedy))

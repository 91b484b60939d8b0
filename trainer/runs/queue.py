"""The queue of runs that wait to be trained, stored in a file, and the thread that starts them."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.core.atomic_io import write_atomic
from trainer.core.errors import RunError
from trainer.runs.locks import acquire_lock

_LOG = logging.getLogger("timbre")
_TIMEOUT_S = 10.0  # changing the queue takes milliseconds; longer means a hanging disk


@dataclass(frozen=True)
class QueuedRun:
    """A queued run and when it was queued (seconds since 1970)."""

    name: str
    queued_at: float


class RunQueue:
    """The queue of one folder of runs; any process may read and change it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".queue.json"
        # A lock file of its own: renaming a new list into place would replace a locked file.
        self._lock_path = folder / ".queue.lock"

    def waiting(self) -> list[QueuedRun]:
        """List the queued runs, next one first."""
        # Without the lock: a list that is replaced by a rename is always whole.
        return self._read()[0]

    @property
    def is_paused(self) -> bool:
        """Whether the queue is paused until a person continues it."""
        return self._read()[1]

    def add(self, name: str) -> None:
        """Append a run to the queue; a run that is queued already keeps its place."""
        with self._changing() as (waiting, _):
            if all(entry.name != name for entry in waiting):
                waiting.append(QueuedRun(name, time.time()))

    def remove(self, name: str) -> None:
        """Remove a run from the queue; its folder stays."""
        with self._changing() as (waiting, _):
            waiting[:] = [entry for entry in waiting if entry.name != name]

    def move(self, name: str, places: int) -> None:
        """Move a run by a number of places; negative numbers move it toward the front.

        Raises:
            RunError: the run is not queued.
        """
        with self._changing() as (waiting, _):
            found = [index for index, entry in enumerate(waiting) if entry.name == name]
            if not found:
                raise RunError(
                    f"The run {name} is no longer in the queue. Reload the page to see the queue."
                )
            entry = waiting.pop(found[0])
            # A negative index would count from the end and send the run toward the back.
            waiting.insert(max(0, found[0] + places), entry)

    def pause(self, paused: bool) -> None:
        """Pause or continue the queue; a run that is training already is not affected."""
        with self._changing() as (_, state):
            state["paused"] = paused

    @contextlib.contextmanager
    def _changing(self) -> Iterator[tuple[list[QueuedRun], dict[str, Any]]]:
        lock = acquire_lock(self._lock_path, timeout_s=_TIMEOUT_S)
        if lock is None:
            raise RunError("Another process has locked the queue. Try again in a moment.")
        try:
            waiting, paused = self._read()
            state: dict[str, Any] = {"paused": paused}
            yield waiting, state
            state["runs"] = [vars(entry) for entry in waiting]
            # Atomically, because readers take no lock.
            write_atomic(self._path, json.dumps(state, ensure_ascii=False))
        finally:
            lock.release()

    def _read(self) -> tuple[list[QueuedRun], bool]:
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            waiting = [
                QueuedRun(str(entry["name"]), float(entry["queued_at"])) for entry in values["runs"]
            ]
            return waiting, bool(values["paused"])
        except (OSError, ValueError, KeyError, TypeError):
            # Missing or damaged: an empty queue loses only the order; the runs themselves remain.
            return [], False


class QueueKeeper(threading.Thread):
    """Starts queued runs one after another; of several processes only one does this.

    The others wait for the lock, which is released when its process ends, and then take over.
    """

    def __init__(self, folder: Path, start_next: Callable[[], None], poll_s: float = 0.5) -> None:
        super().__init__(name="queue-keeper", daemon=True)
        self._lock_path = folder / ".queue.keeper"
        self._start_next = start_next
        # Half a second (chosen by hand) is short beside the seconds that a run takes to start.
        self._poll_s = poll_s
        self._ended = threading.Event()

    def run(self) -> None:
        """Wait for the lock, then start queued runs until `end` is called."""
        lock = None
        while not self._ended.wait(self._poll_s):
            lock = lock or acquire_lock(self._lock_path)
            if lock is not None:
                self._try_next()
        if lock is not None:
            lock.release()

    def end(self) -> None:
        """End the thread, so that another process can take over the queue."""
        self._ended.set()
        self.join()  # the lock must be free when this returns

    def _try_next(self) -> None:
        try:
            self._start_next()
        except (OSError, RunError) as error:
            # A full disk or a busy lock: the queue is unchanged and the next poll tries again.
            _LOG.warning("The next queued run could not be started: %s", error)

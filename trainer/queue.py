"""Queue: runs that wait for their turn, in a file that survives every process, and its keeper."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import RunError
from trainer.ownership import take_lock

_LOG = logging.getLogger("timbre")
_PATIENCE_S = 10.0


@dataclass(frozen=True)
class Waiting:
    """A run that waits, and since when (seconds since 1970)."""

    name: str
    queued_at: float


class RunQueue:
    """The names of the runs that wait below one folder; any process may read and change them."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ".queue.json"
        self._lock_path = folder / ".queue.lock"

    def waiting(self) -> list[Waiting]:
        """List the runs that wait, the next one first."""
        return self._read()[0]

    @property
    def is_paused(self) -> bool:
        """Whether nothing is started until a person continues the queue."""
        return self._read()[1]

    def add(self, name: str) -> None:
        """Put a run at the end; one that waits already keeps its place."""
        with self._changing() as (waiting, _):
            if all(entry.name != name for entry in waiting):
                waiting.append(Waiting(name, time.time()))

    def remove(self, name: str) -> None:
        """Take a run out; it stays where it is, only nobody starts it."""
        with self._changing() as (waiting, _):
            waiting[:] = [entry for entry in waiting if entry.name != name]

    def move(self, name: str, places: int) -> None:
        """Move a run by some places; negative ones lead to the front.

        Raises:
            RunError: it does not wait.
        """
        with self._changing() as (waiting, _):
            found = [index for index, entry in enumerate(waiting) if entry.name == name]
            if not found:
                raise RunError(f"The run {name} does not wait in the queue (any more).")
            entry = waiting.pop(found[0])
            waiting.insert(max(0, found[0] + places), entry)

    def pause(self, paused: bool) -> None:
        """Start nothing any more, or go on; what trains already is left alone."""
        with self._changing() as (_, state):
            state["paused"] = paused

    @contextlib.contextmanager
    def _changing(self) -> Iterator[tuple[list[Waiting], dict[str, Any]]]:
        lock = take_lock(self._lock_path, timeout_s=_PATIENCE_S)
        if lock is None:
            raise RunError("Another process keeps the queue locked. Try again in a moment.")
        try:
            waiting, paused = self._read()
            state: dict[str, Any] = {"paused": paused}
            yield waiting, state
            state["runs"] = [vars(entry) for entry in waiting]
            partial = self._path.with_suffix(".part")
            partial.write_text(json.dumps(state, ensure_ascii=False), encoding="utf-8")
            partial.replace(self._path)
        finally:
            lock.release()

    def _read(self) -> tuple[list[Waiting], bool]:
        try:
            values = json.loads(self._path.read_text(encoding="utf-8"))
            waiting = [
                Waiting(str(entry["name"]), float(entry["queued_at"])) for entry in values["runs"]
            ]
            return waiting, bool(values["paused"])
        except (OSError, ValueError, KeyError, TypeError):
            return [], False


class QueueKeeper(threading.Thread):
    """Starts the next run again and again; of several processes only one keeps a queue.

    The others stand by: the lock ends with its process, so that another one takes over.
    """

    def __init__(self, folder: Path, start_next: Callable[[], None], poll_s: float = 0.5) -> None:
        super().__init__(name="queue-keeper", daemon=True)
        self._lock_path = folder / ".queue.keeper"
        self._start_next = start_next
        self._poll_s = poll_s
        self._ended = threading.Event()

    def run(self) -> None:
        """Wait until this process may keep the queue, then keep it until told to end."""
        lock = None
        while not self._ended.wait(self._poll_s):
            lock = lock or take_lock(self._lock_path)
            if lock is not None:
                self._try_next()
        if lock is not None:
            lock.release()

    def end(self) -> None:
        """End the thread; another process may keep the queue then."""
        self._ended.set()
        self.join()

    def _try_next(self) -> None:
        try:
            self._start_next()
        except (OSError, RunError) as error:
            # A full disk or a busy lock: the queue stays as it is, and is tried again.
            _LOG.warning("The queue could not go on: %s", error)

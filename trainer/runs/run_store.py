"""Manage all runs in one folder, and the threads that start, follow and explain them."""

import contextlib
import logging
import re
import threading
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

from trainer.core.errors import RunExists, RunNotFound, RunOwned, TimbreError
from trainer.core.events import RunFinished
from trainer.core.run_config import RunConfig
from trainer.runs.metric_store import MetricStore
from trainer.runs.queue import QueuedRun, QueueKeeper, RunQueue
from trainer.runs.restart_policy import explain_exit
from trainer.runs.run import Run, RunStatus
from trainer.runs.trash import Trash

_LOG = logging.getLogger("timbre")
# Seconds after its start in which a process may not have taken its run's lock yet: importing torch
# takes seconds, and more on a busy machine. Chosen by hand.
_FRESH_S = 60.0


class TrainerThread(threading.Thread):
    """Starts a run's process or attaches to it, follows its log and explains how it ended.

    Then calls `then` with the run.
    """

    def __init__(
        self,
        run: Run,
        series: MetricStore,
        *,
        start_process: bool,
        then: Callable[[Run], None] | None = None,
    ) -> None:
        super().__init__(name=f"trainer-{run.name}", daemon=True)
        self.run_folder = run
        self.series = series
        self._then = then
        self._process = run.start() if start_process else None

    def run(self) -> None:
        """Follow the event log until the process has ended, then log how it ended."""
        while self._is_alive():
            self.series.update()
            time.sleep(0.25)  # chosen by hand: soon enough for a live page, little CPU
        self.series.update()
        # Without a last event the process was killed and could not log the reason itself.
        if self.series.finished is None:
            self._explain()
            self.series.update()
        if self._then is not None:
            self._then(self.run_folder)

    def _is_alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self.run_folder.is_owned() or self.run_folder.is_supervised()

    def _explain(self) -> None:
        code = self._process.returncode if self._process is not None else None
        if code is None or code == RunOwned.exit_code:
            return
        reason, remedy = explain_exit(code, self.run_folder.log_tail(40))
        # Only the owner may write to the log; another process may have taken the run already.
        try:
            lock = self.run_folder.take()
        except RunOwned:
            return
        event = RunFinished("failed", self.series.last_step, reason, remedy)
        self.run_folder.events.append(event)
        lock.release()


class RunStore:
    """All runs in one folder, with the metrics of open runs and their trainer threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._series: dict[str, MetricStore] = {}
        self._threads: dict[str, TrainerThread] = {}
        self.queue = RunQueue(self.folder)
        self.trash = Trash(self.folder)
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """List the run names, newest first."""
        found: list[tuple[float, str]] = []
        for path in self.folder.glob("*/run.json"):
            with contextlib.suppress(FileNotFoundError):  # just moved to the trash
                found.append((path.stat().st_mtime, path.parent.name))
        return [name for _, name in sorted(found, key=lambda each: each[0], reverse=True)]

    def get(self, name: str) -> Run:
        """Open a run by name.

        Raises:
            RunNotFound: no run has that name.
        """
        # By comparing names, so that a name with path separators cannot leave the folder.
        if name not in self.names():
            raise RunNotFound(
                f"There is no run named '{name}' in {self.folder}. Check the name, or look in the "
                "trash."
            )
        return Run.open(self.folder / name)

    def series(self, name: str) -> MetricStore:
        """Return the up-to-date metrics of a run; those of the last eight runs stay in memory."""
        with self._lock:
            run = self.get(name)
            series = self._series.pop(name, None) or MetricStore(run.events)
            self._series[name] = series  # last in the dict: the most recently used
            # Eight open runs, chosen by hand; runs with a thread stay in any case.
            for stale in list(self._series)[:-8]:
                if stale not in self._threads:
                    del self._series[stale]
        series.update()
        return series

    def status(self, name: str) -> RunStatus:
        """Return the status of a run."""
        return self.get(name).status(self.series(name))

    def create(self, wanted: str, config: RunConfig) -> Run:
        """Create a run under the wanted name or, if it is in use, the name with a number."""
        while True:
            with contextlib.suppress(RunExists):  # another process has just taken that name
                return Run.create(self.folder / free_name(self.folder, wanted), config)

    def start(self, wanted: str, config: RunConfig) -> Run:
        """Create a run, as `create` does, and start its process."""
        run = self.create(wanted, config)
        self._follow(run, start_process=True)
        return run

    def enqueue(self, wanted: str, config: RunConfig) -> Run:
        """Create a run and add it to the queue."""
        run = self.create(wanted, config)
        self.queue.add(run.name)
        return run

    def requeue(self, name: str) -> None:
        """Add an existing run to the queue, to be resumed.

        Raises:
            RunOwned: the run is being trained.
        """
        if self.status(name).is_active:
            raise RunOwned(f"The run {name} is already training, so it cannot be queued.")
        self.queue.add(name)

    def resume(self, name: str) -> Run:
        """Start the process of an existing run again.

        Raises:
            RunOwned: the run is already training.
        """
        run = self.get(name)
        self._follow(run, start_process=True)
        return run

    def add_steps(self, name: str, count: int) -> int:
        """Extend a run, resume it if it is not training, and return its new last step.

        Raises:
            RunError: the number of steps is invalid.
        """
        last_step = self.get(name).request_more(count)
        if not self.status(name).is_active:
            self.resume(name)
        return last_step

    def discard(self, name: str) -> bool:
        """Move a run to the trash and return True; if it is training, stop it and return False.

        A run that is stopped moves to the trash when its process has ended.
        """
        run = self.get(name)
        self.queue.remove(name)
        if not self.status(name).is_active:
            self._move_to_trash(run)
            return True
        run.request("discard")
        run.request("stop")
        with self._lock:
            thread = self._threads.get(name)
        if thread is None or not thread.is_alive():
            self._follow(run, start_process=False)
        return False

    def restore(self, key: str) -> Run:
        """Restore a run from the trash under its old name or, if that is in use, a similar one."""
        names = [entry.name for entry in self.trash.contents() if entry.key == key]
        return self.trash.restore(key, free_name(self.folder, names[0] if names else ""))

    def attach(self) -> list[str]:
        """Follow every run that is training right now; called when a server starts."""
        runs = [self.get(name) for name in self.names()]
        alive = [run.name for run in runs if run.is_owned() or run.is_supervised()]
        for name in alive:
            self._follow(self.get(name), start_process=False)
        # Runs that ended while no server was running may still have a request to carry out.
        for name in set(self.names()) - set(alive):
            self._after(self.get(name))
        return alive

    def keep_queue(self, poll_s: float = 0.5) -> QueueKeeper:
        """Start queued runs one after the other for as long as this process lives."""
        keeper = QueueKeeper(self.folder, self.start_next, poll_s)
        keeper.start()
        return keeper

    def start_next(self) -> None:
        """Start the next run in the queue, unless one is training or the queue is paused."""
        waiting = self.queue.waiting()
        for entry in [entry for entry in waiting if self._needs_no_start(entry)]:
            self.queue.remove(entry.name)
            waiting.remove(entry)
        if not waiting or self.queue.is_paused or any(map(self._is_busy, self.names())):
            return
        run = self.get(waiting[0].name)
        try:
            self._follow(run, start_process=True)
        except (TimbreError, OSError) as error:
            # Logged as a failed run, so that the queue continues with the next one.
            reason = f"The run could not be started from the queue: {error}"
            run.events.append(RunFinished("failed", run.series().last_step, reason))
        # Removed last: if the server is killed before this line, the run is still in the queue, and
        # the next server sees that it was started.
        self.queue.remove(run.name)

    def _needs_no_start(self, entry: QueuedRun) -> bool:
        if entry.name not in self.names():
            return True
        run = self.get(entry.name)
        return run.is_owned() or run.begun_at() > entry.queued_at

    def _is_busy(self, name: str) -> bool:
        """Whether a process is training the run, is about to, or has not quite ended yet."""
        with self._lock:
            thread = self._threads.get(name)
        if thread is not None and thread.is_alive():
            return True
        run = Run(self.folder / name)
        if run.is_owned() or run.is_supervised():
            return True
        return time.time() - run.begun_at() < _FRESH_S and run.status().is_active

    def _follow(self, run: Run, *, start_process: bool) -> None:
        with self._lock:
            series = self.series(run.name)
            thread = TrainerThread(run, series, start_process=start_process, then=self._after)
            self._threads[run.name] = thread
        thread.start()

    def _after(self, run: Run) -> None:
        """Carry out what was requested for after the end of a run: discard it or add steps."""
        try:
            if "discard" in run.requests() and not run.status().is_active:
                self._move_to_trash(run)
            elif run.requested_steps() and run.status().state == "finished":
                self._follow(run, start_process=True)
        except (TimbreError, OSError) as error:
            _LOG.warning("The run %s was not changed: %s", run.name, error)

    def _move_to_trash(self, run: Run) -> None:
        self.trash.move_in(run)
        with self._lock:
            # A new run may get this name and must not be shown with the old metrics.
            self._series.pop(run.name, None)
            self._threads.pop(run.name, None)


# Names that Windows reserves for devices, with any extension; a folder shared with Windows must not
# have them either.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|(?:com|lpt)\d)(?:\.|$)", re.I)


def free_name(library: Path, wanted: str) -> str:
    """Return a folder name based on `wanted` that is valid on every system and not in use."""
    # NFC, because a letter with an accent can be typed as one character or as two.
    composed = unicodedata.normalize("NFC", wanted)
    # 60 characters, at most 4 bytes each, stay below the usual limit of 255 bytes per name.
    name = re.sub(r"[^\w.-]+", "-", composed, flags=re.UNICODE).strip("-. ")[:60] or "run"
    name = f"run-{name}" if _RESERVED.match(name) else name
    number, free = 1, name
    while (library / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free

"""Manage all runs in one folder: find, start, queue, follow and discard them."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from trainer.core.device import MIB
from trainer.core.errors import RunExists, RunNotFound, RunOwned, TimbreError
from trainer.core.events import RunFinished
from trainer.core.run_config import RunConfig
from trainer.runs.metric_store import MetricStore
from trainer.runs.queue import QueuedRun, QueueKeeper, RunQueue
from trainer.runs.restart_policy import explain_exit
from trainer.runs.run import Run
from trainer.runs.run_folder import free_name
from trainer.runs.status import RunStatus
from trainer.runs.trash import Trash

_LOG = logging.getLogger("timbre")
_FRESH_S = 60.0  # by then a process has taken its run's lock, also on a busy machine (by hand)
_KEPT_BYTES = 256 * MIB
"""Metrics kept in memory: those of one run of a million steps (150 MB) and of many shorter ones."""


class RunStore:
    """All runs in one folder, with the metrics of open runs and their trainer threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._series: dict[str, MetricStore] = {}
        self._newest: dict[str, MetricStore] = {}  # of runs whose whole log nobody asked for
        self._threads: dict[str, TrainerThread] = {}
        self.queue = RunQueue(self.folder)
        self.trash = Trash(self.folder)
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """List the run names, newest first."""
        found: list[tuple[float, str]] = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # no run, or just moved to the trash
                    found.append((os.stat(f"{entry.path}/run.json").st_mtime, entry.name))
        return [name for _, name in sorted(found, key=lambda each: each[0], reverse=True)]

    def get(self, name: str) -> Run:
        """Open a run by name; the time does not depend on the number of runs.

        Raises:
            RunNotFound: no run has that name.
        """
        # Browsers send names: they may be no text at all, and must not leave the folder.
        if isinstance(name, str) and name == Path(name).name and name not in ("", ".."):
            folder = self.folder / name
            with contextlib.suppress(OSError):  # a name longer than the system allows
                if (folder / "run.json").is_file():
                    return Run(folder)
        text = f"There is no run named '{name}' in {self.folder}."
        raise RunNotFound(f"{text} Check the name, or look in the trash.")

    def series(self, name: str) -> MetricStore:
        """Return all metrics of a run, up to date; the most recently used ones stay in memory."""
        with self._lock:
            run = self.get(name)
            series = self._series.pop(name, None) or MetricStore(run.events)
            self._series[name] = series  # last in the dict: the most recently used
        series.update()
        with self._lock:
            left = _KEPT_BYTES
            for stale, kept in reversed(list(self._series.items())):
                left -= kept.num_bytes
                if left < 0 and stale != name and not self._is_followed(stale):
                    del self._series[stale]
        return series

    def status(self, name: str) -> RunStatus:
        """Return the status of a run without reading all of its log."""
        return self.look_at(name)[0]

    def look_at(self, name: str) -> tuple[RunStatus, MetricStore]:
        """Return the status of a run and what was read for it: its newest rows, or all of them."""
        run = self.get(name)
        store = self._known(run)
        store.update()
        status = run.status(store)
        with self._lock:
            # A run that trains is asked about every second: its newest rows stay in memory.
            if status.is_active and name not in self._series:
                self._newest[name] = store
            elif not self._is_followed(name):
                self._newest.pop(name, None)
        return status, store

    def _known(self, run: Run) -> MetricStore:
        """Return what is in memory of a run, or its newest rows."""
        return self._series.get(run.name) or self._newest.get(run.name) or run.newest()

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
        if not self._is_followed(name):
            self._follow(run, start_process=False)
        return False

    def restore(self, key: str) -> Run:
        """Restore a run from the trash under its old name or, if that is in use, a similar one."""
        names = [entry.name for entry in self.trash.contents() if entry.key == key]
        return self.trash.restore(key, free_name(self.folder, names[0] if names else ""))

    def attach(self) -> list[str]:
        """Follow every run that is training right now; called when a server starts."""
        alive = []
        for name in self.names():
            with contextlib.suppress(RunNotFound):  # moved to the trash since it was listed
                run = self.get(name)
                if run.is_owned() or run.is_supervised():
                    self._follow(run, start_process=False)
                    alive.append(name)
                else:
                    # It may have ended while no server was there to carry out a request.
                    self._after(run)
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
            run.events.append(RunFinished("failed", run.newest().last_step, reason))
        # Removed last: if the server is killed before this line, the run is still in the queue, and
        # the next server sees that it was started.
        self.queue.remove(run.name)

    def _needs_no_start(self, entry: QueuedRun) -> bool:
        try:
            run = self.get(entry.name)
        except RunNotFound:
            return True
        return run.is_owned() or run.begun_at() > entry.queued_at

    def _is_busy(self, name: str) -> bool:
        """Whether a process is training the run, is about to, or has not quite ended yet."""
        if self._is_followed(name):
            return True
        run = Run(self.folder / name)
        if run.is_owned() or run.is_supervised():
            return True
        return time.time() - run.begun_at() < _FRESH_S and run.status().is_active

    def _is_followed(self, name: str) -> bool:
        thread = self._threads.get(name)
        return thread is not None and thread.is_alive()

    def _follow(self, run: Run, *, start_process: bool) -> None:
        store = self._known(run)
        with self._lock:
            thread = TrainerThread(run, store, start_process=start_process, then=self._after)
            self._threads[run.name] = thread
            # A run that starts now has its whole log in memory: pages share it from its first step.
            (self._series if store.is_whole else self._newest)[run.name] = store
        thread.start()

    def _after(self, run: Run) -> None:
        """Carry out what was requested for the end of a run: discard it or add steps."""
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
            for kept in (self._series, self._newest, self._threads):
                kept.pop(run.name, None)


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

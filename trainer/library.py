"""Library: all runs below one folder, and the threads that start, follow and explain them."""

import contextlib
import logging
import re
import threading
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

from trainer.config import RunConfig
from trainer.errors import RunExists, RunNotFound, RunOwned, TimbreError
from trainer.events import RunFinished
from trainer.queue import QueueKeeper, RunQueue, Waiting
from trainer.restarts import explain_exit
from trainer.runs import Run, RunStatus
from trainer.series import RunSeries
from trainer.trash import Trash

_LOG = logging.getLogger("timbre")
_FRESH_S = 60.0
"""How long after its start a process may be on its way to take its run."""


class TrainerThread(threading.Thread):
    """Starts a run's process (or attaches to it), follows its log and explains its end.

    `then` is called after that, with the run.
    """

    def __init__(
        self,
        run: Run,
        series: RunSeries,
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
        """Follow the event log until the process is gone, then say how it ended."""
        while self._is_alive():
            self.series.update()
            time.sleep(0.25)
        self.series.update()
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
        try:
            lock = self.run_folder.take()
        except RunOwned:
            return
        event = RunFinished("failed", self.series.last_step, reason, remedy)
        self.run_folder.events.append(event)
        lock.release()


class RunLibrary:
    """All runs below one folder, with the series of open ones and their trainer threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._series: dict[str, RunSeries] = {}
        self._threads: dict[str, TrainerThread] = {}
        self.queue = RunQueue(self.folder)
        self.trash = Trash(self.folder)
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """List the run names, newest first."""
        found: list[tuple[float, str]] = []
        for path in self.folder.glob("*/run.json"):
            with contextlib.suppress(FileNotFoundError):  # moved to the trash at this moment
                found.append((path.stat().st_mtime, path.parent.name))
        return [name for _, name in sorted(found, key=lambda each: each[0], reverse=True)]

    def get(self, name: str) -> Run:
        """Open a run by name.

        Raises:
            RunNotFound: no run has that name; names with path separators never do.
        """
        if name not in self.names():
            raise RunNotFound(f"There is no run named '{name}' in {self.folder}.")
        return Run.open(self.folder / name)

    def series(self, name: str) -> RunSeries:
        """Return the up-to-date series of a run; the eight read last stay in memory."""
        with self._lock:
            run = self.get(name)
            series = self._series.pop(name, None) or RunSeries(run.events)
            self._series[name] = series
            for stale in list(self._series)[:-8]:
                if stale not in self._threads:
                    del self._series[stale]
        series.update()
        return series

    def status(self, name: str) -> RunStatus:
        """Return the status of a run."""
        return self.get(name).status(self.series(name))

    def create(self, wanted: str, config: RunConfig) -> Run:
        """Create a run under the wanted name, or under the next free one like it."""
        while True:
            with contextlib.suppress(RunExists):  # somebody else took that name just now
                return Run.create(self.folder / free_name(self.folder, wanted), config)

    def start(self, wanted: str, config: RunConfig) -> Run:
        """Create a run, by the wanted name or one like it, and start its process."""
        run = self.create(wanted, config)
        self._follow(run, start_process=True)
        return run

    def enqueue(self, wanted: str, config: RunConfig) -> Run:
        """Create a run and let it wait for its turn."""
        run = self.create(wanted, config)
        self.queue.add(run.name)
        return run

    def requeue(self, name: str) -> None:
        """Let an existing run wait for its turn to go on.

        Raises:
            RunOwned: it is being trained.
        """
        if self.status(name).is_active:
            raise RunOwned(f"The run {name} is being trained; it need not wait.")
        self.queue.add(name)

    def resume(self, name: str) -> Run:
        """Start the process of an existing run again.

        Raises:
            RunOwned: it runs already.
        """
        run = self.get(name)
        self._follow(run, start_process=True)
        return run

    def add_steps(self, name: str, count: int) -> int:
        """Let a run do more steps, at once if it does not train, and return its new last step.

        Raises:
            RunError: no such number of steps can be added.
        """
        last_step = self.get(name).request_more(count)
        if not self.status(name).is_active:
            self.resume(name)
        return last_step

    def discard(self, name: str) -> bool:
        """Move a run to the trash and return True; one that trains is stopped first: False."""
        run = self.get(name)
        self.queue.remove(name)
        if not self.status(name).is_active:
            self._throw_away(run)
            return True
        run.request("discard")
        run.request("stop")
        with self._lock:
            thread = self._threads.get(name)
        if thread is None or not thread.is_alive():
            self._follow(run, start_process=False)
        return False

    def give_back(self, key: str) -> Run:
        """Take a run out of the trash, under its old name or one like it."""
        names = [entry.name for entry in self.trash.contents() if entry.key == key]
        return self.trash.give_back(key, free_name(self.folder, names[0] if names else ""))

    def attach(self) -> list[str]:
        """Follow every run that a process trains right now; a restarted server calls this."""
        runs = [self.get(name) for name in self.names()]
        alive = [run.name for run in runs if run.is_owned() or run.is_supervised()]
        for name in alive:
            self._follow(self.get(name), start_process=False)
        for name in set(self.names()) - set(alive):
            self._after(self.get(name))
        return alive

    def keep_queue(self, poll_s: float = 0.5) -> QueueKeeper:
        """Start the runs that wait, one after the other, for as long as this process lives."""
        keeper = QueueKeeper(self.folder, self.start_next, poll_s)
        keeper.start()
        return keeper

    def start_next(self) -> None:
        """Start the run that waits longest, unless one trains or the queue is paused."""
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
            reason = f"The run could not be started from the queue: {error}"
            run.events.append(RunFinished("failed", run.series().last_step, reason))
        # Only now, so that a server killed before this line finds the run and that it has begun.
        self.queue.remove(run.name)

    def _needs_no_start(self, entry: Waiting) -> bool:
        if entry.name not in self.names():
            return True
        run = self.get(entry.name)
        return run.is_owned() or run.begun_at() > entry.queued_at

    def _is_busy(self, name: str) -> bool:
        """Whether a process trains the run, is about to, or has not quite ended yet."""
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
        """Do what a person asked for the time after a run's end: discard it, or add steps."""
        try:
            if "discard" in run.requests() and not run.status().is_active:
                self._throw_away(run)
            elif run.requested_steps() and run.status().state == "finished":
                self._follow(run, start_process=True)
        except (TimbreError, OSError) as error:
            _LOG.warning("The run %s was left as it is: %s", run.name, error)

    def _throw_away(self, run: Run) -> None:
        self.trash.take(run)
        with self._lock:
            # Another run may get the name; it must not be shown with these numbers.
            self._series.pop(run.name, None)
            self._threads.pop(run.name, None)


_RESERVED = re.compile(r"(?:con|prn|aux|nul|(?:com|lpt)\d)(?:\.|$)", re.I)
"""Names that Windows keeps for devices, whatever their ending."""


def free_name(library: Path, wanted: str) -> str:
    """Return a folder name made of `wanted` that is safe everywhere and not taken."""
    composed = unicodedata.normalize("NFC", wanted)
    name = re.sub(r"[^\w.-]+", "-", composed, flags=re.UNICODE).strip("-. ")[:60] or "run"
    name = f"run-{name}" if _RESERVED.match(name) else name
    number, free = 1, name
    while (library / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free

"""Library: all runs below one folder, and the threads that start, follow and explain them."""

import re
import threading
import time
from pathlib import Path

from trainer.config import RunConfig
from trainer.errors import RunNotFound, RunOwned
from trainer.events import RunFinished
from trainer.runs import Run, RunStatus
from trainer.series import RunSeries


class TrainerThread(threading.Thread):
    """Starts a run's process (or attaches to it), follows its log and explains its end."""

    def __init__(self, run: Run, series: RunSeries, *, start_process: bool) -> None:
        super().__init__(name=f"trainer-{run.name}", daemon=True)
        self.run_folder = run
        self.series = series
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

    def _is_alive(self) -> bool:
        if self._process is not None:
            return self._process.poll() is None
        return self.run_folder.is_owned()

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
        self._lock = threading.RLock()

    def names(self) -> list[str]:
        """List the run names, newest first."""
        found = [path.parent for path in self.folder.glob("*/run.json")]
        found.sort(key=lambda folder: (folder / "run.json").stat().st_mtime, reverse=True)
        return [folder.name for folder in found]

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

    def start(self, name: str, config: RunConfig) -> Run:
        """Create a run and start its process."""
        run = Run.create(self.folder / name, config)
        self._follow(run, start_process=True)
        return run

    def resume(self, name: str) -> Run:
        """Start the process of an existing run again.

        Raises:
            RunOwned: it runs already.
        """
        run = self.get(name)
        self._follow(run, start_process=True)
        return run

    def attach(self) -> list[str]:
        """Follow every run that a process trains right now; a restarted server calls this."""
        alive = [name for name in self.names() if self.get(name).is_owned()]
        for name in alive:
            self._follow(self.get(name), start_process=False)
        return alive

    def _follow(self, run: Run, *, start_process: bool) -> None:
        with self._lock:
            series = self.series(run.name)
            thread = TrainerThread(run, series, start_process=start_process)
            self._threads[run.name] = thread
        thread.start()


def free_name(library: Path, wanted: str) -> str:
    """Return a folder name made of `wanted` that is safe everywhere and not taken."""
    name = re.sub(r"[^\w.-]+", "-", wanted, flags=re.UNICODE).strip("-. ")[:60] or "run"
    number, free = 1, name
    while (library / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


def explain_exit(code: int, log: str) -> tuple[str, str]:
    """Say in words why a training process ended and what to do about it."""
    remedy = "Press Resume: it goes on from the last checkpoint."
    if code < 0:
        memory = " The system may have run out of memory." if code == -9 else ""
        return f"The training process was killed by signal {-code}.{memory}", remedy
    lines = [line for line in log.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it left no message"
    return f"The training process ended with code {code}: {last}", remedy

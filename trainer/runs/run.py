"""A run: a folder, who trains it, and what is asked of that process."""

import time
from collections.abc import Iterator
from typing import Any

import filelock

from trainer.core.child_process import Child, trainer_command
from trainer.core.errors import RunError
from trainer.core.events import LoggedEvent, OptionsChanged
from trainer.runs import control, locks, process
from trainer.runs.metric_store import MetricStore
from trainer.runs.restart_policy import is_supervised
from trainer.runs.run_folder import RunFolder
from trainer.runs.status import RunStatus, derive_status

_MOST_STEPS = 100_000_000  # protects against typing errors; no real run is that long


class Run(RunFolder):
    """One training and its folder, the only place where its state is kept."""

    def status(self, series: MetricStore | None = None) -> RunStatus:
        """Derive the state and the latest facts from the folder."""
        series = series or self.newest()
        config = None if series.planned_steps else self.current_config
        return derive_status(self.folder, series, config)

    def may_be_active(self) -> bool:
        """Return False if nobody trains the run or is about to; tells it without the log."""
        is_claimed = self.is_owned() or self.is_supervised()
        return is_claimed or process.was_spawned_lately(self.folder)

    def wait(self, poll_s: float = 0.2) -> RunStatus:
        """Wait until the run ends and return its final status."""
        series = self.newest()
        while (status := self.status(series)).is_active:
            time.sleep(poll_s)
            series.update()
        return status

    def follow(self, poll_s: float = 0.2) -> Iterator[LoggedEvent]:
        """Yield events as they arrive, until the run ends."""
        offset, series = 0, self.newest()
        while True:
            series.update()
            is_over = not self.status(series).is_active  # asked first, or the end is missed
            for logged in self.events.follow(offset):
                offset = logged.offset
                yield logged
            if is_over:  # only after one more read, which gets the events of the end
                return
            time.sleep(poll_s)

    # The owner

    def take(self, *, timeout_s: float = 0.0) -> filelock.BaseFileLock:
        """Take the run's exclusive lock, which the system releases when the process ends.

        Raises:
            RunOwned: another process is training this run.
        """
        return locks.take_run(self.folder, timeout_s=timeout_s)

    def is_owned(self) -> bool:
        """Return whether a running process holds the run's lock."""
        return locks.is_owned(self.folder)

    def is_supervised(self) -> bool:
        """Return whether the run has a supervisor, including one that waits to restart it."""
        return is_supervised(self.folder)

    def write_owner(self) -> None:
        """Record which process owns the run; only the lock decides, this is for messages."""
        locks.write_owner(self.folder)

    def owner(self) -> locks.ProcessIdentity | None:
        """Return the process that owns the run, or None; a stale record does not count."""
        return locks.read_owner(self.folder)

    # Control

    @property
    def num_processes(self) -> int:
        """The number of training processes, as configured or as chosen for the next start."""
        chosen = control.chosen_processes(self.folder)
        return chosen or self.current_config.training.num_processes

    def choose_processes(self, count: int) -> None:
        """Set the number of processes from the next start on; steps keep their clips.

        Raises:
            RunError: a step's micro-batches cannot be shared evenly.
        """
        training = self.config.training
        shared = training.num_processes * training.accumulate  # micro-batches of a step
        if count < 1 or shared % count:
            fitting = [str(each) for each in range(1, shared + 1) if shared % each == 0]
            raise RunError(
                f"A step of {self.name} has {shared} micro-batches, which {count} processes cannot "
                f"share evenly. Use one of: {', '.join(fitting)}."
            )
        control.choose_processes(self.folder, count)

    def change_options(self, values: dict[str, Any]) -> None:
        """Change options (as in `run.json`) for the rest of a stopped run.

        Raises:
            RunOwned: the run is being trained.
        """
        lock = self.take()  # the log has one writer at a time
        try:
            self.events.append(OptionsChanged(self.newest().last_step, values))
        finally:
            lock.release()

    def begun_at(self) -> float:
        """Return when a process was last started for this run, in seconds since 1970, or 0."""
        return process.begun_at(self.folder)

    def command(self) -> list[str]:
        """Return the command that starts or continues this run."""
        return trainer_command("resume", str(self.folder))

    def torchrun(self) -> list[str]:
        """Return the torchrun command for several processes on this machine."""
        return process.torchrun_command(self.folder, self.num_processes)

    def start(self) -> Child:
        """Start the training process, detached, so that it outlives this process.

        Raises:
            RunOwned: a process is training this run already.
        """
        return process.start_process(self.folder, self.command())

    def kill(self) -> None:
        """Kill the training process without a last checkpoint.

        Its supervisor does it. Without one, the owner's record identifies the process for certain.

        Raises:
            RunError: the run is not being trained.
        """
        if not self.status().is_active:
            raise RunError(f"The run {self.name} is not being trained.")
        self.request("kill")  # first, so that the supervisor does not restart what dies
        owner = self.owner()
        if not self.is_supervised() and owner is not None:
            locks.kill_tree(owner)

    def request(self, name: str) -> None:
        """Request an action after the current step; `discard` acts at the end, `kill` at once."""
        control.request(self.folder, name)

    def requests(self) -> set[str]:
        """Return the requests that the training process has not handled yet."""
        return control.pending_requests(self.folder)

    def answer(self, name: str) -> None:
        """Remove a request that was carried out."""
        control.answer_request(self.folder, name)

    def drop_requests_before(self, started_at: float) -> None:
        """Remove requests older than `started_at` (seconds since 1970), made to another process."""
        control.drop_requests_before(self.folder, started_at)

    def request_steps(self, last_step: int) -> None:
        """Request a new last step, now or for the next resume; `run.json` never changes.

        Raises:
            RunError: the run has passed this step already, or the number is too large.
        """
        done = self.newest().last_step
        if not done < last_step <= _MOST_STEPS:
            raise RunError(
                f"The run {self.name} is at step {done} and cannot train to step {last_step}. "
                f"Enter a later step, at most {_MOST_STEPS}."
            )
        control.request_steps(self.folder, last_step)

    def request_more(self, count: int) -> int:
        """Request more steps than planned (or done, if it finished early); return the last step.

        Raises:
            RunError: this number of steps cannot be added.
        """
        if count < 1:
            raise RunError(f"A run cannot train {count} more steps; enter at least 1.")
        status = self.status()
        planned = status.step if status.state == "finished" else status.total_steps
        last_step = (self.requested_steps() or planned) + count
        self.request_steps(last_step)
        return last_step

    def requested_steps(self) -> int | None:
        """Return the requested last step that no process has applied yet, or None."""
        return control.requested_steps(self.folder)

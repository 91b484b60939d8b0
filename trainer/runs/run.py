"""A run is a folder; its state and history can be rebuilt from the folder alone."""

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import filelock
import psutil

from trainer.core.atomic_io import is_leftover, sync, write_atomic
from trainer.core.child_process import Child, child_environment, start_child, trainer_command
from trainer.core.device import free_disk_gib
from trainer.core.errors import RunError, RunExists, RunNotFound, RunOwned
from trainer.core.events import EventLog, LoggedEvent, OptionsChanged
from trainer.core.run_config import WRITTEN_BY, RunConfig, merge_values, read_config
from trainer.core.version import __version__
from trainer.runs.control import choose_processes, chosen_processes, request_steps, requested_steps
from trainer.runs.heartbeat import read_pulses
from trainer.runs.locks import ProcessIdentity, acquire_lock, is_locked, kill_tree
from trainer.runs.metric_store import MetricStore
from trainer.runs.restart_policy import RESUME, is_supervised, stays_supervised

REQUESTS = ("stop", "kill", "save", "preview", "discard")  # the file names in `control/`
ACTIVE = ("starting", "running", "stalled", "stopping")
# Chosen by hand: a busy machine may take a minute to import torch and 20 s to end a supervisor.
_STARTING_GRACE_S, _ENDING_S = 60.0, 20.0
_CLOCK_SKEW_S = 2.0  # tolerance between the system's start times and our clock
_LEAST_DISK_GIB = 0.02  # chosen by hand: no checkpoint fits into less
_FULL_DISK = (
    "The disk that holds this run is full. Training continues, but nothing is saved and events "
    "wait in memory.",
    "Free some space or empty the trash on the Runs tab.",
)
_STALL_REMEDY = (
    "log.txt shows where it hangs. If a disk or network share is slow, wait. Otherwise end it and "
    "press Resume to continue from the last checkpoint."
)
_MOST_STEPS = 100_000_000  # protects against typing errors; no real run is that long
_FOLDERS = ("control", "checkpoints", "previews")


@dataclass(frozen=True)
class CheckpointInfo:
    """A published checkpoint: its step, folder, whether it is the best, and its val metrics."""

    step: int
    folder: Path
    best: bool
    metrics: dict[str, float]


@dataclass(frozen=True)
class RunStatus:
    """A summary of a run for the page and the command line; `state` is derived, never stored.

    States: created, starting, running, stalled, stopping, stopped, finished, failed, interrupted.
    """

    name: str
    state: str
    step: int
    total_steps: int
    metrics: dict[str, float]
    phase: str
    phase_done: int
    phase_total: int
    eta_s: float | None
    steps_per_epoch: int
    reason: str
    remedy: str
    created_at: float
    updated_at: float
    optimizations: dict[str, dict[str, Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_active(self) -> bool:
        """Whether a process trains the run or is about to."""
        return self.state in ACTIVE


class Run:
    """One training and its folder, the only place where its state is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder).absolute()
        self.name = self.folder.name
        self.events = EventLog(self.folder / "events.jsonl")

    @staticmethod
    def create(folder: Path | str, config: RunConfig) -> "Run":
        """Create a new run folder.

        Raises:
            RunExists: the folder exists already; a run is never overwritten.
        """
        run = Run(Path(folder))
        try:
            run.folder.mkdir(parents=True)  # the mkdir decides which of two creators wins
        except FileExistsError:
            if not _is_half_made(run.folder):
                raise RunExists(
                    f"The folder {run.folder} exists already. A run is never overwritten: use "
                    f"another name or continue it with: python -m trainer resume {run.folder}"
                ) from None
        for name in _FOLDERS:
            (run.folder / name).mkdir(exist_ok=True)
        # run.json comes last: it makes the folder a run, and every run has a log.
        run.events.path.touch()
        values = config.to_json() | {WRITTEN_BY: __version__}
        text = json.dumps(values, indent=2, ensure_ascii=False)
        write_atomic(run.folder / "run.json", text + "\n")
        sync(run.folder.parent)  # or a power loss may leave no entry for the new folder
        return run

    @staticmethod
    def open(folder: Path | str) -> "Run":
        """Open an existing run folder.

        Raises:
            RunNotFound: the folder holds no run.
        """
        run = Run(Path(folder))
        if not (run.folder / "run.json").is_file():
            raise RunNotFound(
                f"{run.folder} holds no run (it has no run.json). Use the folder of a run or start "
                "one with: python -m trainer train --run DIR ..."
            )
        return run

    @property
    def config(self) -> RunConfig:
        """The configuration the run was created with; it never changes."""
        return read_config(self.folder / "run.json")

    @property
    def current_config(self) -> RunConfig:
        """The configuration in effect: `config` plus the options changed at resumes."""
        values = self.config.to_json()
        for logged in self.events.follow():
            if isinstance(logged.event, OptionsChanged):
                values = merge_values(values, logged.event.values)
        return RunConfig.from_json(values)

    def change_options(self, values: dict[str, Any]) -> None:
        """Change options (as in `run.json`) for the rest of a stopped run.

        Raises:
            RunOwned: the run is being trained.
        """
        lock = self.take()  # the log has one writer at a time
        try:
            self.events.append(OptionsChanged(self.series().last_step, values))
        finally:
            lock.release()

    def take(self, *, timeout_s: float = 0.0) -> filelock.BaseFileLock:
        """Take the run's exclusive lock, which the system releases when the process ends.

        Raises:
            RunOwned: another process is training this run.
        """
        lock = acquire_lock(self.folder / "owner.lock", timeout_s=timeout_s)
        if lock is None:
            raise RunOwned(
                f"The run {self.name} is being trained by another process{self._owner_note()}. "
                f"Watch it with: python -m trainer status {self.folder}"
            )
        return lock

    def is_owned(self) -> bool:
        """Return whether a running process holds the run's lock."""
        return is_locked(self.folder / "owner.lock")

    def is_supervised(self) -> bool:
        """Return whether the run has a supervisor, including one that waits to restart it."""
        return is_supervised(self.folder)

    def write_owner(self) -> None:
        """Record which process owns the run; only the lock decides, this is for messages."""
        identity = ProcessIdentity.of(os.getpid())
        values = asdict(identity) if identity is not None else {}
        write_atomic(self.folder / "owner.json", json.dumps(values))

    def owner(self) -> ProcessIdentity | None:
        """Return the process that owns the run, or None; a stale record does not count."""
        identity = ProcessIdentity.read(_read_json(self.folder / "owner.json"))
        return identity if identity is not None and self.is_owned() and identity.is_alive else None

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
            kill_tree(owner)

    def request(self, name: str) -> None:
        """Request an action after the current step; `discard` acts at the end, `kill` at once."""
        if name not in REQUESTS:
            raise RunError(f"Unknown request '{name}'; use one of {', '.join(REQUESTS)}.")
        (self.folder / "control" / name).touch()

    def requests(self) -> set[str]:
        """Return the requests that the training process has not handled yet."""
        return {name for name in REQUESTS if (self.folder / "control" / name).exists()}

    def answer(self, name: str) -> None:
        """Remove a request that was carried out."""
        (self.folder / "control" / name).unlink(missing_ok=True)

    def request_steps(self, last_step: int) -> None:
        """Request a new last step, now or for the next resume; `run.json` never changes.

        Raises:
            RunError: the run has passed this step already, or the number is too large.
        """
        done = self.series().last_step
        if not done < last_step <= _MOST_STEPS:
            raise RunError(
                f"The run {self.name} is at step {done} and cannot train to step {last_step}. "
                f"Enter a later step, at most {_MOST_STEPS}."
            )
        request_steps(self.folder, last_step)

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
        return requested_steps(self.folder)

    def begun_at(self) -> float:
        """Return when a process was last started for this run, in seconds since 1970, or 0."""
        words = (self.folder / "control" / "spawned.json", self.folder / "owner.json")
        return max(_read_json(path).get("started_at", 0.0) for path in words)

    def drop_requests_before(self, started_at: float) -> None:
        """Remove requests older than `started_at` (seconds since 1970), made to another process."""
        for name in REQUESTS:
            path = self.folder / "control" / name
            if path.exists() and path.stat().st_mtime < started_at:
                path.unlink(missing_ok=True)

    def checkpoints(self) -> list[CheckpointInfo]:
        """List the published checkpoints, oldest first, without verifying their contents."""
        found = []
        for folder in sorted((self.folder / "checkpoints").glob("step-*")):
            try:
                manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
            except (OSError, ValueError):  # not published yet, or pruned meanwhile
                continue
            best = bool(manifest.get("best", False))
            info = CheckpointInfo(int(manifest["step"]), folder, best, manifest.get("metrics", {}))
            found.append(info)
        # An older one may still be marked; only the newest best counts.
        best_step = max((info.step for info in found if info.best), default=None)
        return [
            CheckpointInfo(info.step, info.folder, info.step == best_step, info.metrics)
            for info in found
        ]

    def previews(self) -> list[Path]:
        """List the preview files, oldest first, without links that lead out of the run."""
        home = self.folder.resolve()
        files = (self.folder / "previews").glob("*.*")
        inside = (path for path in files if path.resolve().is_relative_to(home))
        return sorted(path for path in inside if path.suffix in (".wav", ".svg"))

    def log_tail(self, lines: int = 200) -> str:
        """Return the last lines of the process's log."""
        try:
            with (self.folder / "log.txt").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 64_000))  # a log may have 16 MiB
                text = file.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def series(self) -> MetricStore:
        """Read all metric columns from the event log."""
        series = MetricStore(self.events)
        series.update()
        return series

    def status(self, series: MetricStore | None = None) -> RunStatus:
        """Derive the state and the latest facts from the folder."""
        series = series or self.series()
        state, reason, remedy = self._state(series)
        started, phase = series.started, series.phase
        total = series.planned_steps or self.current_config.training.steps or 0
        return RunStatus(
            name=self.name,
            state=state,
            step=series.last_step,
            total_steps=total,
            metrics=series.latest(),
            phase=phase.phase if phase else "",
            phase_done=phase.done if phase else 0,
            phase_total=phase.total if phase else 0,
            eta_s=_eta(series, total) if state == "running" else None,
            steps_per_epoch=started.steps_per_epoch if started else 0,
            reason=reason,
            remedy=remedy,
            created_at=self._created_at(),
            updated_at=series.updated_at,
            optimizations=started.optimizations if started else {},
            facts=started.facts if started else {},
        )

    @property
    def num_processes(self) -> int:
        """The number of training processes, as configured or as chosen for the next start."""
        return chosen_processes(self.folder) or self.current_config.training.num_processes

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
        choose_processes(self.folder, count)

    def command(self) -> list[str]:
        """Return the command that starts or continues this run."""
        return trainer_command("resume", str(self.folder))

    def torchrun(self) -> list[str]:
        """Return the torchrun command for several processes on this machine."""
        torchrun = ["-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        resume = ["-m", "trainer", "resume", str(self.folder)]
        return [sys.executable, *torchrun, str(self.num_processes), *resume]

    def start(self) -> Child:
        """Start the training process, detached, so that it outlives this process.

        Raises:
            RunOwned: a process is training this run already.
        """
        if self.is_owned() or stays_supervised(self.folder, _ENDING_S):  # or two would train it
            raise RunOwned(f"The run {self.name} is being trained already{self._owner_note()}.")
        self.answer("stop")  # made to an earlier process
        self.answer("kill")
        # numpy's threads would compete with torch's during the alignment.
        environment = {"OPENBLAS_NUM_THREADS": "1"} | child_environment()
        environment.pop("TIMBRE_REPORT", None)  # the new process gets its own supervisor
        with (self.folder / "log.txt").open("ab") as log:  # append: it is truncated while in use
            process = start_child(
                self.command(),
                output=log,
                lifetime="session",
                environment=environment,
                folder=self.folder,  # the caller's folder may be removed
            )
        values = {"pid": process.pid, "started_at": time.time()}
        write_atomic(self.folder / "control" / "spawned.json", json.dumps(values))
        return process

    def wait(self, poll_s: float = 0.2) -> RunStatus:
        """Wait until the run ends and return its final status."""
        while (status := self.status()).is_active:
            time.sleep(poll_s)
        return status

    def follow(self, poll_s: float = 0.2) -> Iterator[LoggedEvent]:
        """Yield events as they arrive, until the run ends."""
        offset = 0
        while True:
            is_over = not self.status().is_active  # asked first, or the last events are missed
            for logged in self.events.follow(offset):
                offset = logged.offset
                yield logged
            if is_over:  # only after one more read, which gets the events of the end
                return
            time.sleep(poll_s)

    def _state(self, series: MetricStore) -> tuple[str, str, str]:
        if self.is_owned():
            if {"stop", "kill"} & self.requests():  # before a stall: Stop is the answer to one
                return "stopping", "", ""
            if stall := self._stall():
                return "stalled", stall, _STALL_REMEDY
            is_new = series.started is None or series.finished is not None
            has_begun = not is_new and series.steps.count > 0
            is_full = free_disk_gib(self.folder) < _LEAST_DISK_GIB
            reason, remedy = _FULL_DISK if is_full else ("", "")
            return ("running" if has_begun else "starting"), reason, remedy
        # The process may have logged its end and released the lock since the series was read.
        series.update()
        if self._was_just_spawned(series):
            return "starting", "", ""
        finished = series.finished
        if self.is_supervised() and (finished is None or finished.outcome == "failed"):
            return "starting", "", ""
        if finished is not None:
            return finished.outcome, finished.reason, finished.remedy
        if series.offset == 0:  # no event was ever logged
            return "created", "", ""
        reason = "The training process ended unexpectedly (killed, or the machine went down)."
        return "interrupted", reason, RESUME

    def _created_at(self) -> float:
        try:
            return (self.folder / "run.json").stat().st_mtime
        except FileNotFoundError:
            raise RunNotFound(f"The run {self.name} was just moved away.") from None

    def _stall(self) -> str:
        """Describe a training process that has stopped responding, or return ''."""
        for pulse in read_pulses(self.folder):
            if pulse.is_stalled and pulse.identity.is_alive:
                return (
                    f"The training process {pulse.identity.pid} has shown no sign of life for "
                    f"{pulse.age_s:.0f} s (limit: {pulse.limit_s:.0f} s)."
                )
        return ""

    def _was_just_spawned(self, series: MetricStore) -> bool:
        values = _read_json(self.folder / "control" / "spawned.json")
        spawned_at = values.get("started_at", 0.0)
        if not values or series.updated_at > spawned_at:
            return False
        try:
            process = psutil.Process(values["pid"])
            # A process that started much later got the same PID by chance.
            is_other = process.create_time() > spawned_at + _CLOCK_SKEW_S
            is_dead = is_other or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
        return not is_dead and time.time() - spawned_at < _STARTING_GRACE_S

    def _owner_note(self) -> str:
        owner = self.owner()
        return f" (process {owner.pid})" if owner is not None else ""


def _is_half_made(folder: Path) -> bool:
    """Return whether a crash left a folder that was about to become a run, a while ago."""
    made = (*_FOLDERS, "events.jsonl")
    found = list(folder.iterdir()) if folder.is_dir() else [folder]
    left = [path for path in found if not (path.name == "run.json.part" or is_leftover(path))]
    is_ours = all(path.name in made and not _holds_anything(path) for path in left)
    return is_ours and time.time() - folder.stat().st_mtime > _STARTING_GRACE_S


def _holds_anything(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0


def _eta(series: MetricStore, total: int) -> float | None:
    # The first steps are slow; the median of the last 200 ignores pauses. Both chosen by hand.
    if series.steps.count < 10 or "perf/s_per_step" not in series.steps.columns:
        return None
    recent = sorted(v for v in series.steps.columns["perf/s_per_step"][-200:] if v == v)
    if not recent:
        return None
    return max(0.0, (total - series.last_step) * recent[len(recent) // 2])  # the median


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}

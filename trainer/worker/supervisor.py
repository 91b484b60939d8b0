"""The supervisor: a small process that starts the training process and restarts it after a crash.

It doesn't import torch and, when detached, outlives the process that started it. `python -m trainer
train` and `resume` run this process; its child does the training. Only a parent process learns the
exit code of a crash, so the supervisor also logs how the run ended if the child could not.
"""

import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

import filelock
import psutil

from trainer.core.child_process import (
    Child,
    child_environment,
    start_child,
    trainer_command,
    wait_for_child,
)
from trainer.core.events import Event, EventLog, Notice, RunFinished, RunStarted, StepDone
from trainer.runs.heartbeat import read_pulses
from trainer.runs.locks import ProcessIdentity, acquire_lock, kill_tree
from trainer.runs.restart_policy import (
    FAILED,
    FINISHED,
    OWNED,
    RESTARTABLE,
    RESUME,
    STOP_SIGNALS,
    STOPPED,
    SUPERVISOR_LOCK,
    Ending,
    RestartPolicy,
    explain_exit,
    pop_ending,
)
from trainer.worker.log_rotation import cap_log

REPORT = "TIMBRE_REPORT"
"""Environment variable with the file descriptor on which a child reports what it trains."""
_POLL_S = 0.5  # short enough that Stop feels immediate, long enough to cost nothing
_TAIL_BYTES = 65536  # holds the last events or log lines of any run
_MEMORY_LOOKS = 20  # 10 s: memory is free again by the time a killed child is noticed
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_OUTCOMES = {"finished": FINISHED, "stopped": STOPPED, "failed": FAILED}


def needs_supervisor(argv: Sequence[str]) -> bool:
    """Return whether a command line trains and has no supervisor yet."""
    if not argv or argv[0] not in ("train", "resume") or {"-h", "--help"} & set(argv):
        return False
    # torchrun and Slurm supervise their own processes; Windows lacks the signals used here.
    return REPORT not in os.environ and "WORLD_SIZE" not in os.environ and os.name != "nt"


def supervise(argv: Sequence[str]) -> int:
    """Run `train` or `resume` in a child, restart it if necessary, and return its exit code."""
    most = os.environ.get("TIMBRE_RESTARTS", "")
    policy = RestartPolicy(most=int(most)) if most.isdigit() else RestartPolicy()
    return Supervisor(trainer_command(*argv), policy).run()


def report(folder: Path, processes: int) -> None:
    """Tell the supervisor, if there is one, what this process trains; end when it ends."""
    number = os.environ.get(REPORT, "")
    if not number.isdigit():
        return
    # No digits: a child of this process must not write to a descriptor that is closed.
    os.environ[REPORT] = "told"  # still set, so that a child does not start a supervisor
    die_with_parent()
    log = folder / "events.jsonl"
    told = {
        "folder": str(folder),
        "processes": processes,
        # The process may end before its supervisor looks; its events start at this offset.
        "offset": log.stat().st_size if log.exists() else 0,
    }
    with contextlib.suppress(OSError), os.fdopen(int(number), "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(told))


def end_process(code: int) -> NoReturn:
    """End this process with an exit code; one of several ranks skips Python's shutdown.

    Threads left behind by gloo sometimes abort the shutdown: with torch 2.11 in 7 of 75 finished
    pairs of ranks on a busy machine. torchrun would then report a finished run as failed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        sys.exit(code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def die_with_parent() -> None:
    """Have the system kill this process when its parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _resume(folder: Path) -> list[str]:
    return trainer_command("resume", str(folder))


class Supervisor:
    """Starts a training command, watches it, and restarts the run as its policy allows.

    `again` returns the command that continues a run folder.
    """

    def __init__(
        self,
        command: Sequence[str],
        policy: RestartPolicy,
        again: Callable[[Path], list[str]] = _resume,
    ) -> None:
        self._command = list(command)
        self._policy = policy
        self._again = again
        self._folder: Path | None = None
        self._lock: filelock.BaseFileLock | None = None
        self._restarts: list[float] = []
        self._processes = 1
        self._offset = 0
        self._signals = 0
        self._has_asked = False
        self._was_killed = False
        self._has_dumped = False
        self._memory_percent: deque[float] = deque(maxlen=_MEMORY_LOOKS)

    def run(self) -> int:
        """Train until a restart would not help or is not allowed; return the exit code."""
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle_signal)
        while True:
            ending, is_told = self._train_once()
            if self._folder is None:
                return ending.exit_code
            if not self._should_restart(self._folder, ending):
                code = self._end(self._folder, ending, is_told=is_told)
                if self._lock is not None:
                    self._lock.release()
                return code
            self._command = self._again(self._folder)
            self._note_start(self._folder)

    def _train_once(self) -> tuple[Ending, bool]:
        """Run the command once; return how it ended and whether the child logged that itself."""
        reader, writer = os.pipe()
        # Non-blocking, because the child never reports after a usage error, for example.
        os.set_blocking(reader, False)
        process = start_child(
            self._command,
            environment=child_environment() | {REPORT: str(writer)},
            descriptors=[writer],
            # Ctrl+C reaches only the supervisor, which treats a first and a second differently.
            lifetime="group",
        )
        os.close(writer)  # only the child may hold it open, or the pipe would never end
        with os.fdopen(reader, "rb", buffering=0) as pipe:
            while process.returncode is None:
                # Poll faster until the run is known, so that its supervisor lock is taken soon.
                wait_for_child(process, _POLL_S if self._folder else 0.1)
                if self._folder is None:
                    self._read_report(pipe.read(_TAIL_BYTES))
                self._watch(process)
        return self._ending_of(process.returncode)

    def _read_report(self, told: bytes | None) -> None:
        """Read from the child which run it trains, and lock the run for this supervisor."""
        if not told:
            return
        values = json.loads(told)
        self._folder, self._processes = Path(values["folder"]), values["processes"]
        self._lock = acquire_lock(self._folder / "control" / SUPERVISOR_LOCK)
        # Events before this belong to earlier processes and say nothing about this child.
        self._offset = values["offset"]

    def _note_start(self, folder: Path) -> None:
        """Remember where the events of the next child will begin."""
        pop_ending(folder)
        self._offset = (folder / "events.jsonl").stat().st_size

    def _watch(self, process: Child) -> None:
        if process.returncode is not None:
            return
        folder = self._folder
        if folder is None:
            # No run yet, hence no folder for a stop request.
            if self._signals:
                process.terminate()
            return
        self._memory_percent.append(psutil.virtual_memory().percent)
        if self._signals and not self._has_asked:
            self._has_asked = True
            (folder / "control" / "stop").touch()
        if self._signals > 1 or (folder / "control" / "kill").exists():
            self._was_killed = True
            # The whole tree, because ranks under torchrun would go on training.
            identity = ProcessIdentity.of(process.pid)
            if identity is not None:
                kill_tree(identity)
        self._dump_if_stalled(folder)
        cap_log(folder / "log.txt")

    def _dump_if_stalled(self, folder: Path) -> None:
        """Make stalled processes write their stacks to the log, once per stall."""
        stalled = [pulse for pulse in read_pulses(folder) if pulse.is_stalled]
        for pulse in stalled if not self._has_dumped else []:
            if pulse.identity.is_alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pulse.identity.pid, signal.SIGUSR1)
        self._has_dumped = bool(stalled)  # reset once it moves, so the next stall is dumped too

    def _ending_of(self, code: int) -> tuple[Ending, bool]:
        """Return how the child ended, and whether it logged that itself."""
        folder = self._folder
        if folder is None:
            return Ending(code), True
        last, _ = _last_words(folder, self._offset)
        # Before the exit code, because torchrun reports one code for all ranks.
        left = pop_ending(folder)
        if left is not None:
            return left, isinstance(last, RunFinished)
        if isinstance(last, RunFinished):
            # The run had ended already; a crash during shutdown changes nothing.
            return Ending(code if code >= 0 else _OUTCOMES[last.outcome], last.reason), True
        if code < 0:
            percent = max(self._memory_percent, default=None)
            return Ending(code, explain_exit(code, "", percent)[0]), False
        if code in (FINISHED, OWNED):
            return Ending(code), True
        if self._processes > 1:
            text = f"One of {self._processes} training processes was killed or ended unexpectedly."
            return Ending(RESTARTABLE, text), False
        return Ending(code, explain_exit(code, _tail(folder / "log.txt"))[0]), False

    def _should_restart(self, folder: Path, ending: Ending) -> bool:
        """Return whether to restart the run, after announcing and waiting as the policy says."""
        if not ending.may_restart or self._wants_end(folder):
            return False
        # Monotonic: a clock that is set back must not turn a wait of seconds into hours.
        now = time.monotonic()
        wait_s = self._policy.wait_s(self._restarts, now)
        if wait_s is None:
            return False
        count = sum(now - moment < self._policy.within_s for moment in self._restarts) + 1
        most = self._policy.most
        text = f"{ending.reason} Restarting in {wait_s:.0f} s ({count} of {most})."
        remedy = "No action needed; training resumes from the last checkpoint."
        _append(folder, Notice("warning", text, remedy, _last_words(folder)[1]))
        while time.monotonic() < now + wait_s:
            # Asked again during the wait, because Stop must not have to wait for the next start.
            if self._wants_end(folder):
                return False
            time.sleep(min(0.1, wait_s))
        self._restarts.append(time.monotonic())
        return True

    def _wants_end(self, folder: Path) -> bool:
        control = folder / "control"
        asked = (control / "stop").exists() or (control / "kill").exists()
        return asked or self._signals > 0 or self._was_killed

    def _end(self, folder: Path, ending: Ending, *, is_told: bool) -> int:
        """Log how the run ended if the child could not, and return the exit code."""
        wants_end = self._wants_end(folder)
        step = _last_words(folder)[1]
        # Answered now: a request left behind could be taken for one to the next start.
        for request in ("stop", "kill"):
            (folder / "control" / request).unlink(missing_ok=True)
        if ending.may_restart and wants_end:
            reason = "Killed without a last checkpoint." if self._was_killed else ""
            _append(folder, RunFinished("stopped", step, reason or ending.reason, RESUME))
            return STOPPED
        if ending.may_restart:
            times = f"The run was restarted {self._policy.most} times and crashed every time."
            _append(folder, RunFinished("failed", step, f"{ending.reason} {times}", RESUME))
        elif not is_told:
            _append(folder, RunFinished("failed", step, ending.reason, "See log.txt for details."))
        return ending.exit_code

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        """Count signals: `_watch` treats the first one as Stop and the second one as kill."""
        self._signals += 1


def _append(folder: Path, event: Event) -> None:
    """Append an event to a run that no process trains; skip it if a new process took the run."""
    lock = acquire_lock(folder / "owner.lock", timeout_s=2.0)
    if lock is not None:
        EventLog(folder / "events.jsonl").append(event)
        lock.release()


def _last_words(folder: Path, offset: int = 0) -> tuple[Event | None, int]:
    """Return the last event after an offset, and the last step found near the end of the log."""
    log = EventLog(folder / "events.jsonl")
    offset = max(offset, log.path.stat().st_size - _TAIL_BYTES)
    last, step = None, 0
    for logged in log.follow(offset):
        last = logged.event
        if isinstance(last, RunStarted):
            step = last.first_step - 1
        elif isinstance(last, StepDone):
            step = last.step
    return last, step


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            # The tail may begin in the middle of a character, and libraries print whatever they
            # like.
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""

"""Explain how a training process ended and decide whether to restart it."""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.runs.locks import acquire_lock, is_locked

FINISHED, FAILED, STOPPED, NEEDS_PERSON, RESTARTABLE, OWNED = 0, 1, 10, 20, 30, 75
"""Exit codes of a training process.

1 and 2: the request is impossible. 10: a person stopped it. 20: a person has to change something.
30: a new process may succeed. 75: another process is training the run (EX_TEMPFAIL of sysexits.h).
"""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM))
"""Signals that mean Stop: a process ended by one of them is not restarted."""
RESUME = "Press Resume to continue from the last checkpoint."
# Not the owner's lock: between two starts nobody trains, yet the run must not be started twice.
SUPERVISOR_LOCK = "supervisor.lock"
"""Lock in `control/`, held by a run's supervisor, also between two starts."""
_WORD = "ending.json"


@dataclass(frozen=True)
class RestartPolicy:
    """How often a run restarts automatically within a time window, and the wait before each.

    The defaults are chosen by hand: a passing fault (a reset GPU, a lost share) is over within
    seconds to a minute, and a run that fails more often needs a person.
    """

    most: int = 3
    within_s: float = 3600.0
    waits_s: tuple[float, ...] = (2.0, 15.0, 60.0)

    def wait_s(self, restarts: Sequence[float], now: float) -> float | None:
        """Return the seconds to wait before the next start, or None after too many restarts.

        `restarts` and `now` are times in seconds since 1970.
        """
        # Only recent restarts count, so a run of several weeks survives a rare fault each day.
        recent = [moment for moment in restarts if now - moment < self.within_s]
        if len(recent) >= self.most:
            return None
        return self.waits_s[min(len(recent), len(self.waits_s) - 1)]


@dataclass(frozen=True)
class Ending:
    """How a training process ended: its exit code, negative for a signal, and the reason.

    `is_common`: every rank ends the same way on its own, so none has to end the others.
    """

    code: int
    reason: str = ""
    is_common: bool = False

    @property
    def may_restart(self) -> bool:
        """Whether a new process may succeed: after a GPU error or a signal other than Stop."""
        is_struck = self.code < 0 and -self.code not in map(int, STOP_SIGNALS)
        return self.code == RESTARTABLE or is_struck

    @property
    def exit_code(self) -> int:
        """The exit code as a shell reports it: 128 plus the number of a signal."""
        return self.code if self.code >= 0 else 128 - self.code


def is_supervised(folder: Path) -> bool:
    """Return whether a run has a supervisor, including one that is waiting to restart it."""
    return is_locked(folder / "control" / SUPERVISOR_LOCK)


def stays_supervised(folder: Path, timeout_s: float) -> bool:
    """Return whether a supervisor remains after `patience_s`, which ignores one that is ending."""
    if not is_supervised(folder):
        return False
    lock = acquire_lock(folder / "control" / SUPERVISOR_LOCK, timeout_s=timeout_s)
    if lock is not None:
        lock.release()
    return lock is None


def explain_exit(code: int, log: str, memory_percent: float | None = None) -> tuple[str, str]:
    """Explain why a training process ended: (reason, remedy)."""
    if code < 0:
        return f"The training process was killed by signal {-code}{_more(code, memory_percent)}.", (
            RESUME
        )
    # The last line of a Python traceback is the exception itself.
    lines = [line for line in log.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no message"
    return f"The training process ended with code {code}: {last}", RESUME


def _more(code: int, memory_percent: float | None) -> str:
    if -code == signal.SIGKILL and memory_percent is not None:
        return f", host memory was {memory_percent:.0f} % full"
    if -code == signal.SIGKILL:  # what the kernel's OOM killer sends
        return ". The system may have run out of memory"
    if -code in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        return f" ({signal.Signals(-code).name}); its last stack is in log.txt"
    return ""


def write_ending(folder: Path, ending: Ending, rank: int) -> None:
    """Record how one of several ranks ended; the first record of a start counts.

    torchrun reports one code for all ranks and restarts them after any code but 0. If a restart
    would not help, the ranks therefore exit with 0 and leave this file for the supervisor.
    """
    path = folder / "control" / _WORD
    values = {"code": ending.code, "reason": ending.reason, "rank": rank}
    try:
        # "x" fails if the file exists, so only the first rank's reason is kept: later ranks fail
        # because that one did.
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(values))
    except FileExistsError:
        return


def pop_ending(folder: Path) -> Ending | None:
    """Return and remove the ending that one of several ranks recorded, or return None."""
    path = folder / "control" / _WORD
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()  # it must not explain the next ending as well
        return Ending(int(values["code"]), str(values["reason"]))
    except (OSError, ValueError, KeyError):
        return None


def is_restart_pointless(folder: Path) -> bool:
    """Return whether torchrun restarted ranks that had ended because a person has to act."""
    is_again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    return is_again and (folder / "control" / _WORD).exists()

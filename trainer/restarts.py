"""Restarts: what the end of a training process means, and how often a run is started again."""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.ownership import is_locked, take_lock

FINISHED, FAILED, STOPPED, NEEDS_PERSON, RESTARTABLE, OWNED = 0, 1, 10, 20, 30, 75
"""Exit codes of a training process.

1 and 2: what was asked for cannot be done. 10: a person stopped it. 20: a person has to change
something. 30: a new process may mend it. 75: another process trains the run."""
ASKED = (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM))
"""Signals that mean Stop; who ends a process with one of them does not want it back."""
RESUME = "Press Resume: it goes on from the last checkpoint."
SUPERVISOR_LOCK = "supervisor.lock"
"""In `control/`: held by whoever watches over a run, also between two starts."""
_WORD = "ending.json"


@dataclass(frozen=True)
class RestartPolicy:
    """How often a run is started again by itself within a time, and the seconds before each."""

    most: int = 3
    within_s: float = 3600.0
    waits_s: tuple[float, ...] = (2.0, 15.0, 60.0)

    def wait_s(self, restarts: Sequence[float], now: float) -> float | None:
        """Return how long to wait before the next start, or None when there were too many."""
        recent = [moment for moment in restarts if now - moment < self.within_s]
        if len(recent) >= self.most:
            return None
        return self.waits_s[min(len(recent), len(self.waits_s) - 1)]


@dataclass(frozen=True)
class Ending:
    """How a training process ended: its exit code, negative for a signal, and its reason.

    `is_common`: all processes that train the run end like this, each by itself.
    """

    code: int
    reason: str = ""
    is_common: bool = False

    @property
    def may_restart(self) -> bool:
        """Whether a new process may mend it: a lost GPU, or a signal that nobody meant as Stop."""
        is_struck = self.code < 0 and -self.code not in map(int, ASKED)
        return self.code == RESTARTABLE or is_struck

    @property
    def exit_code(self) -> int:
        """The code a shell would give: signals become 128 and their number."""
        return self.code if self.code >= 0 else 128 - self.code


def is_supervised(folder: Path) -> bool:
    """Whether a supervisor watches over a run, also while it waits to start it again."""
    return is_locked(folder / "control" / SUPERVISOR_LOCK)


def stays_supervised(folder: Path, patience_s: float) -> bool:
    """Whether a supervisor still watches over a run after so long: one that is ending goes by."""
    if not is_supervised(folder):
        return False
    lock = take_lock(folder / "control" / SUPERVISOR_LOCK, timeout_s=patience_s)
    if lock is not None:
        lock.release()
    return lock is None


def explain_exit(code: int, log: str, memory_percent: float | None = None) -> tuple[str, str]:
    """Say in words why a training process ended and what to do about it."""
    if code < 0:
        return f"The training process was killed by signal {-code}{_more(code, memory_percent)}.", (
            RESUME
        )
    lines = [line for line in log.splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it left no message"
    return f"The training process ended with code {code}: {last}", RESUME


def _more(code: int, memory_percent: float | None) -> str:
    if -code == signal.SIGKILL and memory_percent is not None:
        return f", host memory was {memory_percent:.0f} % full"
    if -code == signal.SIGKILL:
        return ". The system may have run out of memory"
    if -code in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        return f" ({signal.Signals(-code).name}); its last stack is in log.txt"
    return ""


def leave_ending(folder: Path, ending: Ending, rank: int) -> None:
    """Write down how one of several processes ended; the first word of a start counts.

    Who starts several processes reports one code for all of them, and starts them again whatever
    it is; so they end with 0 where a new start is no use, and leave this word for the supervisor.
    """
    path = folder / "control" / _WORD
    values = {"code": ending.code, "reason": ending.reason, "rank": rank}
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(json.dumps(values))
    except FileExistsError:
        return


def take_ending(folder: Path) -> Ending | None:
    """Return what one of several processes left as its last word, and take it away."""
    path = folder / "control" / _WORD
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        path.unlink()
        return Ending(int(values["code"]), str(values["reason"]))
    except (OSError, ValueError, KeyError):
        return None


def is_started_in_vain(folder: Path) -> bool:
    """Whether torchrun started processes again that ended because a person has to act."""
    is_again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
    return is_again and (folder / "control" / _WORD).exists()

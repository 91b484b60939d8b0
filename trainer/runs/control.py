"""Requests to the process that trains a run, stored as small files in its folder.

Files work across processes, machines with a shared disk, and restarts. Texts are replaced by a
rename, so that a reader never sees half a number.
"""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from trainer.core.atomic_io import write_atomic
from trainer.core.errors import RunError

CONTROL = "control"
REQUESTS = ("stop", "kill", "save", "preview", "discard")  # the file names in `control/`


def request(folder: Path, name: str) -> None:
    """Request an action after the current step; `discard` acts at the end, `kill` at once.

    Raises:
        RunError: there is no such request.
    """
    if name not in REQUESTS:
        raise RunError(f"Unknown request '{name}'; use one of {', '.join(REQUESTS)}.")
    (folder / CONTROL / name).touch()


def pending_requests(folder: Path) -> set[str]:
    """Return the requests that the training process has not handled yet."""
    return {name for name in REQUESTS if (folder / CONTROL / name).exists()}


def answer_request(folder: Path, name: str) -> None:
    """Remove a request that was carried out."""
    (folder / CONTROL / name).unlink(missing_ok=True)


def drop_requests_before(folder: Path, started_at: float) -> None:
    """Remove requests older than `started_at` (seconds since 1970), made to another process."""
    for name in REQUESTS:
        path = folder / CONTROL / name
        with contextlib.suppress(FileNotFoundError):  # answered meanwhile
            if path.stat().st_mtime < started_at:
                path.unlink()


def request_steps(folder: Path, last_step: int) -> None:
    """Request a new last step for a run; a later request replaces an earlier one."""
    write_atomic(folder / CONTROL / "plan", str(last_step))


def requested_steps(folder: Path) -> int | None:
    """Return the requested last step that no process has applied yet, or None."""
    return _read_number(folder / CONTROL / "plan")


def pop_step_request(folder: Path) -> int | None:
    """Return the requested last step and remove the request, or return None.

    The file is renamed before it is read, so a request made at the same moment is not lost.
    """
    taken = folder / CONTROL / "plan.taken"
    with contextlib.suppress(OSError):
        (folder / CONTROL / "plan").replace(taken)
        return _read_number(taken)
    return None


def choose_processes(folder: Path, count: int) -> None:
    """Set how many processes train the run from its next start on."""
    write_atomic(folder / CONTROL / "processes", str(count))


def chosen_processes(folder: Path) -> int | None:
    """Return the number of processes chosen after the run was created, or None."""
    return _read_number(folder / CONTROL / "processes")


def _read_number(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text(encoding="utf-8"))
    return None


@dataclass(frozen=True)
class ProcessRecord:
    """A process that a run was given to, and when (seconds since 1970); zeros if unknown."""

    pid: int = 0
    started_at: float = 0.0


def read_record(path: Path) -> ProcessRecord:
    """Return the process that a file of a run names; a missing or damaged file names none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return ProcessRecord(int(values["pid"]), float(values["started_at"]))
    except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
        return ProcessRecord()

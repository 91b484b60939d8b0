"""Requests to a run about its length and processes, stored as small files in its folder."""

import contextlib
from pathlib import Path

from trainer.core.atomic_io import write_atomic

# Files work across processes, machines with a shared disk, and restarts.
CONTROL = "control"


def request_steps(folder: Path, last_step: int) -> None:
    """Request a new last step for a run; a later request replaces an earlier one."""
    write_atomic(folder / CONTROL / "plan", str(last_step))


def requested_steps(folder: Path) -> int | None:
    """Return the requested last step that no process has applied yet, or None."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / CONTROL / "plan").read_text(encoding="utf-8"))
    return None


def pop_step_request(folder: Path) -> int | None:
    """Return the requested last step and remove the request, or return None.

    The file is renamed before it is read, so a request made at the same moment is not lost.
    """
    taken = folder / CONTROL / "plan.taken"
    with contextlib.suppress(OSError, ValueError):
        (folder / CONTROL / "plan").replace(taken)
        return int(taken.read_text(encoding="utf-8"))
    return None


def choose_processes(folder: Path, count: int) -> None:
    """Set how many processes train the run from its next start on."""
    write_atomic(folder / CONTROL / "processes", str(count))


def chosen_processes(folder: Path) -> int | None:
    """Return the number of processes chosen after the run was created, or None."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / CONTROL / "processes").read_text(encoding="utf-8"))
    return None

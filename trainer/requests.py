"""Requests: what a person asks of a run while it trains, or before it goes on, as small files."""

import contextlib
from pathlib import Path

CONTROL = "control"


def ask_for_steps(folder: Path, last_step: int) -> None:
    """Leave word how far a run is to go; a later word replaces an earlier one."""
    partial = folder / CONTROL / "plan.part"
    partial.write_text(str(last_step), encoding="utf-8")
    partial.replace(folder / CONTROL / "plan")


def asked_steps(folder: Path) -> int | None:
    """Return the last step that was asked for and that no process has taken up yet."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / CONTROL / "plan").read_text(encoding="utf-8"))
    return None


def take_asked_steps(folder: Path) -> int | None:
    """Return the last step that was asked for and take the word away, or None.

    It is moved before it is read, so that a word left at that moment is not lost.
    """
    taken = folder / CONTROL / "plan.taken"
    with contextlib.suppress(OSError, ValueError):
        (folder / CONTROL / "plan").replace(taken)
        return int(taken.read_text(encoding="utf-8"))
    return None


def choose_processes(folder: Path, count: int) -> None:
    """Leave word how many processes train the run from its next start on."""
    partial = folder / CONTROL / "processes.part"
    partial.write_text(str(count), encoding="utf-8")
    partial.replace(folder / CONTROL / "processes")


def chosen_processes(folder: Path) -> int | None:
    """Return how many processes were chosen to train the run after it was made, or None."""
    with contextlib.suppress(OSError, ValueError):
        return int((folder / CONTROL / "processes").read_text(encoding="utf-8"))
    return None

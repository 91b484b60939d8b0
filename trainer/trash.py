"""Trash: runs that were thrown away lie below `.trash`, until they are taken back or deleted."""

import contextlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from trainer.errors import RunNotFound, RunOwned
from trainer.runs import Run

_KEY = re.compile(r"(\d{13,})-(.+)")


@dataclass(frozen=True)
class Discarded:
    """A run in the trash: its key there, the name it had, when it came, and its size in bytes."""

    key: str
    name: str
    discarded_at: float
    size_bytes: int


class Trash:
    """The discarded runs of one folder of runs."""

    def __init__(self, library: Path) -> None:
        self._library = library
        self._folder = library / ".trash"

    def take(self, run: Run) -> str:
        """Move a run here and return its key.

        Raises:
            RunOwned: it is being trained.
        """
        if run.status().is_active:
            raise RunOwned(f"The run {run.name} is being trained. Stop it before you discard it.")
        lock = run.take()
        key = f"{time.time_ns() // 1_000_000}-{run.name}"
        try:
            run.answer("discard")
            self._folder.mkdir(exist_ok=True)
            if os.name == "nt":  # Windows moves no folder in which a file is open
                lock.release()
            run.folder.rename(self._folder / key)
        finally:
            lock.release()
        return key

    def contents(self) -> list[Discarded]:
        """List what lies here, the newest first."""
        found = []
        for folder in self._folder.glob("*"):
            match = _KEY.fullmatch(folder.name)
            if match and folder.is_dir():
                size = sum(_size(path) for path in folder.rglob("*"))
                found.append(Discarded(folder.name, match[2], int(match[1]) / 1000, size))
        return sorted(found, key=lambda entry: entry.key, reverse=True)

    def count(self) -> int:
        """Count what lies here, without a look inside."""
        return sum(1 for folder in self._folder.glob("*") if _KEY.fullmatch(folder.name))

    def give_back(self, key: str, name: str) -> Run:
        """Move a run back among the others, under a name that is free.

        Raises:
            RunNotFound: there is nothing of that key.
        """
        folder = self._find(key)
        folder.rename(self._library / name)
        return Run.open(self._library / name)

    def delete(self, key: str) -> None:
        """Delete a run for good.

        Raises:
            RunNotFound: there is nothing of that key.
        """
        shutil.rmtree(self._find(key))

    def _find(self, key: str) -> Path:
        if key not in {entry.key for entry in self.contents()}:
            raise RunNotFound(f"There is no '{key}' in the trash (any more).")
        return self._folder / key


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size if path.is_file() else 0
    return 0

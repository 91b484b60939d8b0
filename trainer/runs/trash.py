"""The trash: discarded runs are kept in `.trash` until they are restored or deleted."""

import contextlib
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from trainer.core.errors import RunNotFound, RunOwned
from trainer.runs.run import Run

_KEY = re.compile(r"(\d{13,})-(.+)")  # milliseconds since 1970 (13 digits since 2001) and name


@dataclass(frozen=True)
class Discarded:
    """A run in the trash; `discarded_at` is in seconds since 1970."""

    key: str
    name: str
    discarded_at: float
    size_bytes: int


class Trash:
    """The discarded runs of one library folder."""

    def __init__(self, library: Path) -> None:
        self._library = library
        self._folder = library / ".trash"

    def move_in(self, run: Run) -> str:
        """Move a run to the trash and return its key.

        Raises:
            RunOwned: the run is being trained.
        """
        if run.status().is_active:
            raise RunOwned(f"The run {run.name} is being trained. Stop it before discarding it.")
        lock = run.take()  # nobody may start it while its folder moves
        key = f"{time.time_ns() // 1_000_000}-{run.name}"
        try:
            run.answer("discard")
            self._folder.mkdir(exist_ok=True)
            if os.name == "nt":  # Windows cannot move a folder while a file in it is open
                lock.release()
            run.folder.rename(self._folder / key)
        finally:
            lock.release()
        return key

    def contents(self) -> list[Discarded]:
        """List the discarded runs, newest first."""
        found = []
        for folder in self._folder.glob("*"):
            match = _KEY.fullmatch(folder.name)
            if match and folder.is_dir():
                size = sum(_size(path) for path in folder.rglob("*"))
                found.append(Discarded(folder.name, match[2], int(match[1]) / 1000, size))
        return sorted(found, key=lambda entry: entry.key, reverse=True)

    def count(self) -> int:
        """Count the discarded runs without reading their folders."""
        return sum(1 for folder in self._folder.glob("*") if _KEY.fullmatch(folder.name))

    def restore(self, key: str, name: str) -> Run:
        """Move a run back to the library under `name`, which must be free.

        Raises:
            RunNotFound: no discarded run has this key.
        """
        folder = self._find(key)
        folder.rename(self._library / name)
        return Run.open(self._library / name)

    def delete(self, key: str) -> None:
        """Delete a run permanently.

        Raises:
            RunNotFound: no discarded run has this key.
        """
        shutil.rmtree(self._find(key))

    def _find(self, key: str) -> Path:
        # Compare with the listing instead of joining the path: a key may contain `..`.
        if key not in {entry.key for entry in self.contents()}:
            raise RunNotFound(f"'{key}' is not in the trash. Reload the page to see what is.")
        return self._folder / key


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size if path.is_file() else 0
    return 0

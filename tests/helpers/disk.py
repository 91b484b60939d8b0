"""A simulated disk: records what is done to a folder, and what power that fails may leave of it.

An entry of a folder is safe once the folder was forced to the disk, the contents of a file once the
file was. Of what is not safe any part may be there: entries come singly, contents whole or torn.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

OPERATIONS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir")
Operation = tuple[str, str, Any]
"""(kind, path, and the content written or the second path); paths are relative to the folder."""


@contextmanager
def before_each_operation(look: Callable[[str, tuple[Any, ...]], None]) -> Iterator[None]:
    """Call `look` before every operation that changes what a disk holds, one at a time."""
    turn = threading.RLock()
    real = {name: getattr(os, name) for name in OPERATIONS}

    def watched(name: str) -> Callable[..., Any]:
        def operate(*arguments: Any, **options: Any) -> Any:
            with turn:
                look(name, arguments)
                return real[name](*arguments, **options)

        return operate

    patch = pytest.MonkeyPatch()
    for name in OPERATIONS:
        patch.setattr(os, name, watched(name))
    try:
        yield
    finally:
        patch.undo()


def record(folder: Path, deed: Callable[[], object]) -> list[Operation]:
    """Return what a deed does to a folder, in order; whole files are deleted by their trees."""
    log: list[Operation] = []
    seen = {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*"))}

    def note_writes() -> None:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if path.is_file() and seen.get(name) != _content(path):
                seen[name] = _content(path)
                log.append(("write", name, seen[name]))

    def note(kind: str, arguments: tuple[Any, ...]) -> None:
        note_writes()
        first = arguments[0]
        path = Path(os.readlink(f"/proc/self/fd/{first}") if kind == "fsync" else first)
        if kind in ("unlink", "rmdir") or not path.is_relative_to(folder):
            return  # a folder that is deleted was renamed before; nobody looks into it any more
        name = str(path.relative_to(folder))
        if kind not in ("rename", "replace"):
            log.append((kind, name, None))
            return
        after = str(Path(arguments[1]).relative_to(folder))
        log.append(("rename", name, after))
        for old in [each for each in seen if each == name or each.startswith(f"{name}/")]:
            seen[after + old[len(name) :]] = seen.pop(old)

    with before_each_operation(note):
        deed()
    note_writes()
    return log


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


@dataclass
class _Folder:
    """Entries that are safe, and changes of entries since: each a list of (name, what or None)."""

    safe: dict[str, "_Folder | _File"] = field(default_factory=dict)
    changes: list[list[tuple[str, "_Folder | _File | None"]]] = field(default_factory=list)

    def now(self) -> dict[str, "_Folder | _File"]:
        return _apply(self.safe, self.changes)


@dataclass
class _File:
    """Contents that are safe (None: nothing is), and those written last."""

    safe: bytes | None
    now: bytes


class Disk:
    """What a disk holds for certain and what it may hold, while operations are carried out."""

    def __init__(self, folder: Path) -> None:
        """Begin with all that is in a folder, safe."""
        self.root = _Folder()
        self._load(folder, self.root)

    def do(self, operation: Operation) -> None:
        """Carry out an operation."""
        kind, name, extra = operation
        *parents, last = Path(name).parts or (".",)
        if kind == "fsync":
            self._force(name)
            return
        folder = self._find(parents)
        if kind == "write" and last in folder.now():
            file = folder.now()[last]
            assert isinstance(file, _File)
            file.now = extra
        elif kind == "write":
            folder.changes.append([(last, _File(None, extra))])
        elif kind == "mkdir":
            folder.changes.append([(last, _Folder())])
        else:
            assert Path(extra).parent == Path(name).parent
            folder.changes.append([(last, None), (Path(extra).name, folder.now()[last])])

    def after_power_loss(self) -> Iterator[dict[str, bytes]]:
        """Yield every set of files that may be found: contents by path, those most lost first."""
        yield from _states(self.root, "")

    def _force(self, name: str) -> None:
        found: Any = self._find(Path(name).parts[:-1])
        if name != ".":
            found = found.now()[Path(name).name]
        if isinstance(found, _File):
            found.safe = found.now
        else:
            found.safe, found.changes = found.now(), []

    def _find(self, parts: Any) -> _Folder:
        folder = self.root
        for part in parts:
            inner = folder.now()[part]
            assert isinstance(inner, _Folder)
            folder = inner
        return folder

    def _load(self, path: Path, folder: _Folder) -> None:
        for each in path.iterdir():
            if each.is_dir():
                inner = _Folder()
                folder.safe[each.name] = inner
                self._load(each, inner)
            else:
                folder.safe[each.name] = _File(each.read_bytes(), each.read_bytes())


def _apply(entries: dict[str, Any], changes: Any) -> dict[str, Any]:
    entries = dict(entries)
    for change in changes:
        for name, what in change:
            if what is None:
                entries.pop(name, None)
            else:
                entries[name] = what
    return entries


def _states(folder: _Folder, prefix: str) -> Iterator[dict[str, bytes]]:
    for count in range(len(folder.changes) + 1):
        for arrived in itertools.combinations(folder.changes, count):
            entries = _apply(folder.safe, arrived)
            choices = [list(_choices(what, f"{prefix}{name}")) for name, what in entries.items()]
            for chosen in itertools.product(*choices):
                yield {path: content for part in chosen for path, content in part.items()}


def _choices(what: _Folder | _File, path: str) -> Iterator[dict[str, bytes]]:
    if isinstance(what, _Folder):
        yield from _states(what, f"{path}/")
        return
    if what.safe != what.now:
        torn = what.now[: len(what.now) // 2]
        yield {path: torn if what.safe is None else what.safe}
    yield {path: what.now}

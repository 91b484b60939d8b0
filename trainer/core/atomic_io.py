"""Write files atomically and durably, and append lines that a torn line cannot corrupt."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_PARTIAL, _OLD = ".part", ".old"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a free path to write a file or folder to, and put what is there in place of `path`.

    It lies in the same folder and is removed if writing fails. A reader sees the old content or
    the new one, also after a power cut; of a folder there is nothing for a moment in between.
    """
    partial, old = _beside(path, _PARTIAL), _beside(path, _OLD)
    try:
        yield partial
        _sync_tree(partial)  # before the rename, or a power cut could leave a name without content
        if path.is_dir():  # a rename replaces files only
            path.rename(old)
        partial.replace(path)
    finally:
        _remove(partial)
        if old.exists() and not path.exists():  # the second rename failed
            old.rename(path)
    sync(path.parent)  # the folder holds the name, so the rename needs an fsync of its own
    _remove(old)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace a file's content atomically and durably; text is written as UTF-8."""
    with replacing(path) as partial:
        partial.write_bytes(content.encode() if isinstance(content, str) else content)


def discard(folder: Path) -> None:
    """Delete a folder; an interrupted deletion leaves nothing under the folder's name."""
    old = _beside(folder, _OLD)
    folder.rename(old)
    shutil.rmtree(old, ignore_errors=True)


def is_leftover(path: Path) -> bool:
    """Whether a path is what a process that was killed left of a file or folder."""
    return path.name.startswith(".") and path.name.endswith((_PARTIAL, _OLD))


def _beside(path: Path, suffix: str) -> Path:
    # A token, because two writers of the same path must not share a partial file.
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}{suffix}")


def _sync_tree(path: Path) -> None:
    if path.is_dir():
        for inner in sorted(path.iterdir()):
            _sync_tree(inner)
    sync(path)  # a folder after its files: it holds their names


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        # On a lost disk the removal fails as well; the error that came first must be seen.
        with suppress(OSError):
            path.unlink(missing_ok=True)


def append_line(path: Path, text: str) -> None:
    """Append a line to a file; if the last line is torn, start on a new line."""
    with path.open("a+b") as file:
        # One write call, so that two processes that append do not mix their lines.
        file.write(missing_line_end(file) + text.encode() + b"\n")


def missing_line_end(file: BinaryIO) -> bytes:
    """Return the newline that an open file's last line lacks, or nothing if it is complete."""
    if file.seek(0, os.SEEK_END) == 0:
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


def sync(path: Path) -> None:
    """Flush a file or folder to disk (fsync); on Windows, folders are skipped."""
    # Windows cannot open a folder as a file.
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Write files atomically and durably, and append lines that a torn line cannot corrupt."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replace a file's text atomically: a reader sees the old text or the new one."""
    # No fsync: for facts about running processes, which a power cut ends anyway.
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_atomic(path: Path, text: str) -> None:
    """Replace a file's text atomically and durably: write beside it, fsync, then rename."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    sync(partial)  # before the rename, or a power cut could leave the new name on an empty file
    partial.replace(path)
    sync(path.parent)  # the folder holds the name, so the rename needs an fsync of its own


def append_line(path: Path, text: str) -> None:
    """Append a line to a file; if the last line is torn, start on a new line."""
    with path.open("ab") as file:
        # One write call, so that two processes that append do not mix their lines.
        file.write(missing_line_end(path) + text.encode() + b"\n")


def missing_line_end(path: Path) -> bytes:
    """Return the newline that a file's last line lacks, or nothing if it is complete."""
    with path.open("rb") as file:
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

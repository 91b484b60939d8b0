"""Durable: files that are whole after a power cut, and lines that a torn one cannot take along."""

import os
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Give a file this text at once: who reads it meanwhile finds the old one or the new one."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_durably(path: Path, text: str) -> None:
    """Give a file this text at once: written beside it, forced to the disk, then renamed."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    sync(partial)
    partial.replace(path)
    sync(path.parent)


def append_line(path: Path, text: str) -> None:
    """Write a line behind the others of a file; one that was torn there spoils only itself."""
    with path.open("ab") as file:
        file.write(line_end_if_torn(path) + text.encode() + b"\n")


def line_end_if_torn(path: Path) -> bytes:
    """Return the end that the last line of a file lacks, nothing where it has one."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return b""
        file.seek(-1, os.SEEK_END)
        return b"" if file.read(1) == b"\n" else b"\n"


def sync(path: Path) -> None:
    """Force a file or folder to the disk; Windows cannot do that for folders."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

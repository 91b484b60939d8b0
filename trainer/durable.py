"""Durable: files that are whole after a power cut, the old one or the new one."""

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


def sync(path: Path) -> None:
    """Force a file or folder to the disk; Windows cannot do that for folders."""
    if path.is_dir() and os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

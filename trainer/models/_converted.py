"""Converted weights in the cache: made once by whichever process comes first, named by contents."""

import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from trainer.data.cache import content_hash

Opened = TypeVar("Opened")


def convert_once(
    folder: Path, open_folder: Callable[[Path], Opened | None], fill: Callable[[Path], None]
) -> Opened:
    """Fill a folder of the cache once, however many processes want it, and open it.

    `open_folder` returns None for a folder that is not there or not whole.
    """
    with FileLock(folder.with_suffix(".lock")):
        if (opened := open_folder(folder)) is not None:
            return opened
        for left in folder.parent.glob(f".{folder.name}-*"):
            shutil.rmtree(left, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            fill(partial)
            shutil.rmtree(folder, ignore_errors=True)  # There, but damaged.
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    opened = open_folder(folder)
    assert opened is not None
    return opened


def remembered_hash(path: Path, folder: Path) -> str:
    """Return the hash of a file's contents, read again only if its size or time changed."""
    facts = path.stat()
    key = [str(path.resolve()), facts.st_size, facts.st_mtime_ns]
    note = folder / f"{hash_text(key[0])}.json"
    with suppress(OSError, ValueError, KeyError):
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["key"] == key:
            return str(known["hash"])
    found = content_hash(path)
    # A file that changes again within the clock's resolution would keep its time.
    if time.time_ns() - facts.st_mtime_ns > 2_000_000_000:
        folder.mkdir(exist_ok=True)
        partial = folder / f".{note.name}-{os.getpid()}"
        partial.write_text(json.dumps({"key": key, "hash": found}), encoding="utf-8")
        os.replace(partial, note)
    return found


def hash_text(text: str) -> str:
    """Return a short name for a text."""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()

"""Cache converted weights in folders named after the contents of their source file.

Several processes may want the same conversion; the first one does it, the others wait.
"""

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

from trainer.data.features.cache import content_hash

Opened = TypeVar("Opened")


def convert_once(
    folder: Path, open_folder: Callable[[Path], Opened | None], fill: Callable[[Path], None]
) -> Opened:
    """Open a cache folder, filling it first if no other process has done so.

    `open_folder` returns None if the folder is missing or incomplete.
    """
    with FileLock(folder.with_suffix(".lock")):
        if (opened := open_folder(folder)) is not None:
            return opened
        # Left behind by a process that was killed while converting. Nobody else is writing them:
        # this process holds the lock.
        for left in folder.parent.glob(f".{folder.name}-*"):
            shutil.rmtree(left, ignore_errors=True)
        # In the same directory, so that the rename below is atomic.
        partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            fill(partial)
            shutil.rmtree(folder, ignore_errors=True)  # exists, but is damaged
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    opened = open_folder(folder)
    assert opened is not None
    return opened


def remembered_hash(path: Path, folder: Path) -> str:
    """Return the hash of a file's contents; reread the file only if its size or mtime changed."""
    facts = path.stat()
    key = [str(path.resolve()), facts.st_size, facts.st_mtime_ns]
    note = folder / f"{hash_text(key[0])}.json"
    with suppress(OSError, ValueError, KeyError):
        known = json.loads(note.read_text(encoding="utf-8"))
        if known["key"] == key:
            return str(known["hash"])
    found = content_hash(path)
    # A file that is written twice within the clock's resolution keeps its mtime. FAT has the
    # coarsest common one, 2 s, so hashes of younger files are not remembered.
    if time.time_ns() - facts.st_mtime_ns > 2_000_000_000:
        folder.mkdir(exist_ok=True)
        partial = folder / f".{note.name}-{os.getpid()}"
        partial.write_text(json.dumps({"key": key, "hash": found}), encoding="utf-8")
        os.replace(partial, note)
    return found


def hash_text(text: str) -> str:
    """Return a hash of a text as 32 hexadecimal digits, for use in file names."""
    # Paths that are not valid UTF-8 contain lone surrogates, which cannot be encoded.
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()

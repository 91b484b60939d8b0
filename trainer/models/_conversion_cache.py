"""Cache converted weights in folders named after the contents of their source file.

Several processes may want the same conversion; the first one does it, the others wait.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from trainer.core.atomic_io import replacing, write_atomic
from trainer.core.errors import CheckpointError
from trainer.data.features.cache import content_hash, default_cache_folder
from trainer.models._json import Json

ABOUT_FILE = "base.json"
LICENCE_FILE = "LICENSE-WEIGHTS.txt"

RANDOM_LICENCE = (
    "These weights are random numbers. They were made by Timbre and may be used without "
    "restriction."
)
_LONGEST_LICENCE = 100_000  # characters; a limit for hostile files, licences are far shorter

Opened = TypeVar("Opened")


@contextmanager
def conversions(name: str, base: Path | None) -> Iterator[Path]:
    """Yield the folder for a family's converted bases.

    Raises:
        CheckpointError: in place of an OSError of the body; the message names the base.
    """
    parent = default_cache_folder() / name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        yield parent
    except OSError as error:
        raise CheckpointError(
            f"{base or 'The random base'} could not be converted into {parent}: "
            f"{error.strerror or error}. Free disk space, or set TIMBRE_CACHE to another folder."
        ) from None


def convert_once(
    folder: Path, open_folder: Callable[[Path], Opened | None], fill: Callable[[Path], None]
) -> Opened:
    """Open a cache folder, filling it first if no other process has done so.

    `open_folder` returns None if the folder is missing or incomplete.
    """
    # Tried without the lock first: what is converted stays as it is, so readers need not wait.
    if (opened := open_folder(folder)) is not None:
        return opened
    with FileLock(folder.with_suffix(".lock")):
        if (opened := open_folder(folder)) is None:
            # Left behind by a process that was killed while converting. Nobody else is writing
            # them: this process holds the lock.
            for left in folder.parent.glob(f".{folder.name}[.-]*"):
                shutil.rmtree(left, ignore_errors=True)
            with replacing(folder) as partial:
                partial.mkdir()
                fill(partial)
            opened = open_folder(folder)
    assert opened is not None
    return opened


def write_about(folder: Path, about: Mapping[str, object]) -> None:
    """Write the facts about a base, with the sizes of its files to detect truncated ones."""
    sizes = [[path.name, path.stat().st_size] for path in sorted(folder.glob("*.safetensors"))]
    text = json.dumps({**about, "files": sizes}, ensure_ascii=False)
    (folder / ABOUT_FILE).write_text(text, encoding="utf-8")


def read_about(folder: Path) -> Json | None:
    """Return what `write_about` wrote, or None if it or one of the files is not whole."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
        # Sizes are enough: a crash may truncate files, but nothing rewrites them.
        if all((folder / name).stat().st_size == size for name, size in about["files"]):
            return about
    return None


def read_licence(path: Path | None, published: str) -> str:
    """Return the licence beside a base's weights; without that file, the published one."""
    if path is None or not path.is_file():
        return published
    return path.read_text(encoding="utf-8", errors="replace")[:_LONGEST_LICENCE].strip()


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
        write_atomic(note, json.dumps({"key": key, "hash": found}))
    return found


def hash_text(text: str) -> str:
    """Return a hash of a text as 32 hexadecimal digits, for use in file names."""
    # Paths that are not valid UTF-8 contain lone surrogates, which cannot be encoded.
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=16).hexdigest()

"""Cache features on disk, computed once per clip and featurizer and shared by all runs.

An entry is named by the hash of all its inputs, so entries are never stale and several processes
can write at once. Entries lie in memory-mapped files: unused entries take no memory, and processes
share pages. If the disk is full or read-only, the run continues without the cache.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict, cast
from uuid import uuid4

import numpy as np

from trainer.core.device import MIB
from trainer.core.errors import DataError
from trainer.core.specs import Corpus, Featurizer, Progress
from trainer.core.types import Clip, Features
from trainer.data.features.array_file import ArrayFile, DamagedFile, LazyArrays, write_array_file
from trainer.data.features.workers import compute_in_workers

_FEW = 32  # Fewer clips are computed in this process: starting workers takes seconds.
_FORMAT = "3"  # Part of every key: raising it leaves all older entries unused.
_FILE_BYTES = 64 * MIB
"""Size of a file of features, and so the most that a crash or a damaged file can lose."""


def default_cache_folder() -> Path:
    """Return $TIMBRE_CACHE, else $XDG_CACHE_HOME/timbre, else ~/.cache/timbre."""
    if os.environ.get("TIMBRE_CACHE"):
        return Path(os.environ["TIMBRE_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "timbre"
    return Path.home() / ".cache" / "timbre"


def content_hash(path: Path | str) -> str:
    """Return the hash of a file's bytes.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with open(path, "rb") as file:
            # 128 bits are enough to rule out that two files share a hash by chance.
            return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path} cannot be read: {reason}. Was it moved or removed?") from None


class _Survey(TypedDict):
    """What is stored of a Corpus beside its own arrays; `arrays` are the names by clip id."""

    facts: dict[str, Any]
    unusable: dict[str, str]
    arrays: dict[str, list[str]]


class FeatureCache:
    """Features and surveys in a folder; can be interrupted at any moment, and deleted."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._hashes: dict[Clip, tuple[str, str]] = {}

    def collect(
        self, clips: Sequence[Clip], featurizer: Featurizer, *, workers: int, progress: Progress
    ) -> tuple[dict[str, Features], dict[str, str]]:
        """Return features by clip id, and the reasons for clips that have none.

        Uses `workers` processes. With 0 workers, or fewer than 32 missing clips, features are
        computed in this process, because starting processes would take longer.
        """
        # Files may have changed since they were last hashed.
        self._hashes.clear()
        names, unusable = self.names(clips, featurizer)
        folder = self.folder / "features" / _hash(_FORMAT, featurizer.fingerprint)
        known = _entries(folder)
        found: dict[str, Features] = {
            clip_id: known[name].arrays(name) for clip_id, name in names.items() if name in known
        }
        missing = [clip for clip in clips if clip.id in names and clip.id not in found]
        done = len(clips) - len(missing)
        progress("Computing features", done, len(clips))
        recorder = _Recorder(folder)
        try:
            for clip, result in _compute(missing, featurizer, workers):
                if isinstance(result, str):
                    unusable[clip.id] = result
                else:
                    found[clip.id] = result
                    found |= recorder.add(clip.id, names[clip.id], result)
                done += 1
                progress("Computing features", done, len(clips))
        finally:
            # Also after Stop or an error, so that finished features are not computed again.
            found |= recorder.finish()
        # In the order of the clips: workers finish in any order, and runs must not differ.
        features = {clip.id: found[clip.id] for clip in clips if clip.id in found}
        return features, unusable

    def names(
        self, clips: Sequence[Clip], featurizer: Featurizer
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the cache keys by clip id, and the reasons for clips that cannot be read.

        Files are hashed once per instance, until `collect` is called again.
        """
        unread = [clip for clip in clips if clip not in self._hashes]
        # Threads suffice, because hashing releases the GIL; 8 is chosen by hand.
        with ThreadPoolExecutor(max_workers=8) as pool:
            self._hashes |= zip(unread, pool.map(_hash_or_reason, unread), strict=True)
        names, unreadable = {}, {}
        for clip in clips:
            content, reason = self._hashes[clip]
            if reason:
                unreadable[clip.id] = reason
                continue
            parts = (content, clip.text, clip.speaker, clip.language, featurizer.fingerprint)
            names[clip.id] = _hash(_FORMAT, *parts)
        return names, unreadable

    def remember(
        self, key: str, features: Mapping[str, Features], compute: Callable[[], Corpus]
    ) -> Corpus:
        """Return the Corpus stored under a key; compute and store it on the first call.

        `features` are those that the survey reads, by clip id. Arrays of theirs that it returns
        unchanged are not stored again.
        """
        path = self.folder / "surveys" / f"{_hash(_FORMAT, key)}.safetensors"
        stored = _read_corpus(path, features)
        if stored is not None:
            return stored
        corpus = compute()
        # Round-trip through JSON, so that the first call returns the same as later calls.
        corpus.facts = json.loads(json.dumps(corpus.facts))
        return _write_corpus(path, corpus, features) or corpus


def _read_corpus(path: Path, features: Mapping[str, Features]) -> Corpus | None:
    try:
        file = ArrayFile(path)
    except DamagedFile:
        return None
    about = cast(_Survey, file.facts)
    ready: dict[str, Features] = {}
    for clip_id, names in about["arrays"].items():
        own = file.arrays(clip_id)
        ready[clip_id] = LazyArrays(
            {name: (own if name in own else features[clip_id]).__getitem__ for name in names}
        )
    return Corpus(about["facts"], ready, about["unusable"])


def _write_corpus(path: Path, corpus: Corpus, features: Mapping[str, Features]) -> Corpus | None:
    """Store what a survey computed; return it memory-mapped, or None if writing fails."""
    own = {
        clip_id: {
            name: array
            for name, array in arrays.items()
            if not _is_same(features.get(clip_id, {}), name, array)
        }
        for clip_id, arrays in corpus.features.items()
    }
    names = {clip_id: list(arrays) for clip_id, arrays in corpus.features.items()}
    about: _Survey = {"facts": corpus.facts, "unusable": corpus.unusable, "arrays": names}
    with suppress(OSError):
        write_array_file(path, own, about)
        return _read_corpus(path, features)
    return None


def _is_same(features: Features, name: str, array: np.ndarray) -> bool:
    # Not `features[name]`, which would read an array that the survey left alone.
    if isinstance(features, LazyArrays):
        return features.has_read(name, array)
    return features.get(name) is array


def _entries(folder: Path) -> dict[str, ArrayFile]:
    """Return the file of each entry; damaged files are skipped and their entries recomputed."""
    entries: dict[str, ArrayFile] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with suppress(DamagedFile):
            file = ArrayFile(path)
            entries |= dict.fromkeys(file.groups, file)
    return entries


class _Recorder:
    """Writes features to files as they arrive; returns them memory-mapped when a file is full."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, tuple[str, Features]] = {}
        self._size = 0

    def add(self, clip_id: str, name: str, features: Features) -> dict[str, Features]:
        """Add the features of a clip; if that fills a file, return its features by clip id."""
        self._waiting[clip_id] = (name, features)
        self._size += sum(array.nbytes for array in features.values())
        return self.finish() if self._size >= _FILE_BYTES else {}

    def finish(self) -> dict[str, Features]:
        """Write the pending features; return them memory-mapped, or nothing if writing fails."""
        waiting, self._waiting, self._size = self._waiting, {}, 0
        # A random name, so that processes that write at once never meet.
        path = self._folder / f"{uuid4().hex}.safetensors"
        if not waiting:
            return {}
        with suppress(OSError, DamagedFile):
            write_array_file(path, dict(waiting.values()), {})
            file = ArrayFile(path)
            return {clip_id: file.arrays(name) for clip_id, (name, _) in waiting.items()}
        return {}


def _compute(
    clips: Sequence[Clip], featurizer: Featurizer, workers: int
) -> Iterator[tuple[Clip, Features | str]]:
    if workers > 0 and len(clips) >= _FEW:
        yield from compute_in_workers(clips, featurizer, workers)
        return
    for clip in clips:
        try:
            yield clip, featurizer(clip)
        except DataError as error:
            yield clip, str(error)


def _hash_or_reason(clip: Clip) -> tuple[str, str]:
    try:
        hashes = [content_hash(path) for path in clip.content_paths]
        # Audio-only clips keep the key they had before arrays existed, so old caches stay valid.
        if not clip.arrays:
            return hashes[0], ""
        return _hash(*clip.arrays, *hashes, json.dumps([clip.lengths, clip.duration_s])), ""
    except DataError as error:
        return "", str(error)


def _hash(*parts: str) -> str:
    # With lengths, because ("ab", "c") and ("a", "bc") must differ.
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(joined.encode(errors="replace"), digest_size=16).hexdigest()

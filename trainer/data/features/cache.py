"""Cache features on disk, computed once per clip and featurizer and shared by all runs.

An entry is named by the hash of all its inputs, so entries are never stale and several processes
can write at once. Entries are stored in memory-mapped packs: unused entries take no memory, and
processes share pages. If the disk is full or read-only, the run continues without the cache.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from trainer.core.device import MIB
from trainer.core.errors import DataError
from trainer.core.specs import Corpus, Featurizer, Progress
from trainer.core.types import Clip, Features
from trainer.data.features.array_file import ArrayFile, ArrayFileWriter, DamagedFile, MappedFiles
from trainer.data.features.workers import compute_in_workers

_FEW = 32  # Fewer clips are computed in this process: starting workers takes seconds.
_FORMAT = "2"  # Part of every key: raising it leaves all older entries unused.
_FILE_BYTES = 64 * MIB
"""Size of a pack of features, and so the most that a crash or a damaged file can lose."""


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


class FeatureCache:
    """Features and surveys in a folder; can be interrupted at any moment, and deleted."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._mapped_files = MappedFiles(self.folder)
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
        packs = self.folder / "packs" / _hash(_FORMAT, featurizer.fingerprint)
        known = self._entries(packs)
        found: dict[str, Features] = {
            clip_id: self._mapped_files.arrays(known[name], name)
            for clip_id, name in names.items()
            if name in known
        }
        missing = [clip for clip in clips if clip.id in names and clip.id not in found]
        done = len(clips) - len(missing)
        progress("Computing features", done, len(clips))
        recorder = _Recorder(packs, self._mapped_files)
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

    def remember(self, key: str, compute: Callable[[], Corpus]) -> Corpus:
        """Return the Corpus stored under a key; compute and store it on the first call.

        Cached features that the survey returns unchanged are referenced, not stored again.
        """
        path = self.folder / "surveys" / f"{_hash(_FORMAT, key)}.pack"
        stored = self._read_corpus(path)
        if stored is not None:
            return stored
        corpus = compute()
        # Round-trip through JSON, so that the first call returns the same as later calls.
        corpus.facts = json.loads(json.dumps(corpus.facts))
        about = {"facts": corpus.facts, "unusable": corpus.unusable}
        _write_array_file(path, corpus.features, about, self._mapped_files)
        return self._read_corpus(path) or corpus

    def _read_corpus(self, path: Path) -> Corpus | None:
        try:
            pack = ArrayFile(path)
            features = {
                clip_id: self._mapped_files.arrays(pack, clip_id) for clip_id in pack.groups
            }
            return Corpus(pack.facts["facts"], dict(features), pack.facts["unusable"])
        except DamagedFile:
            return None

    def _entries(self, folder: Path) -> dict[str, ArrayFile]:
        """Return the pack of each entry; damaged packs are skipped and their entries recomputed."""
        entries: dict[str, ArrayFile] = {}
        for path in sorted(folder.glob("*.pack")):
            try:
                pack = self._mapped_files.open(path)
            except DamagedFile:
                continue
            entries |= dict.fromkeys(pack.groups, pack)
        return entries


class _Recorder:
    """Writes features to packs as they arrive; returns them memory-mapped when a pack is full."""

    def __init__(self, folder: Path, mapped_files: MappedFiles) -> None:
        self._folder = folder
        self._mapped_files = mapped_files
        self._waiting: dict[str, tuple[str, Features]] = {}
        self._size = 0

    def add(self, clip_id: str, name: str, features: Features) -> dict[str, Features]:
        """Add the features of a clip; if that fills a pack, return its features by clip id."""
        self._waiting[clip_id] = (name, features)
        self._size += sum(array.nbytes for array in features.values())
        return self.finish() if self._size >= _FILE_BYTES else {}

    def finish(self) -> dict[str, Features]:
        """Write the pending features; return them memory-mapped, or nothing if writing fails."""
        waiting, self._waiting, self._size = self._waiting, {}, 0
        # A random name, so that processes that write at once never meet.
        path = self._folder / f"{uuid4().hex}.pack"
        if not waiting or not _write_array_file(path, dict(waiting.values()), None, None):
            return {}
        try:
            pack = self._mapped_files.open(path)
        except DamagedFile:
            return {}
        return {
            clip_id: self._mapped_files.arrays(pack, name) for clip_id, (name, _) in waiting.items()
        }


def _write_array_file(
    path: Path, features: Mapping[str, Features], facts: object, mapped_files: MappedFiles | None
) -> bool:
    """Write a pack; return whether it succeeded."""
    try:
        writer = ArrayFileWriter(path, mapped_files)
        try:
            for group, arrays in features.items():
                writer.add(group, arrays)
            writer.finish(facts)
        finally:
            writer.abandon()
    except OSError:
        return False
    return True


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

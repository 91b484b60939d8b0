"""Cache: features computed once per clip and featurizer, found again by every later run.

An entry's name is the hash of all that goes into it, so entries are never stale and several
processes may write at once. Entries lie in packs, which are mapped: what is not looked at takes no
memory, and processes share what is. A full or read-only disk costs the cache, not the run.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

from trainer.data.packs import DamagedFile, Lenders, Pack, PackWriter
from trainer.data.types import Clip, Features
from trainer.data.workers import compute_in_workers
from trainer.errors import DataError
from trainer.specs import Corpus, Featurizer, Progress

_FEW = 32
_FORMAT = "2"
_PACK_BYTES = 64 * 2**20
"""Size of a pack of features: what a crash in the middle, or damage, costs at most."""


def default_cache_folder() -> Path:
    """Return $TIMBRE_CACHE, else timbre below $XDG_CACHE_HOME, else ~/.cache/timbre."""
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
            return hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path} cannot be read: {reason}. Was it moved or removed?") from None


class FeatureCache:
    """Features and surveys in a folder; safe to interrupt at any moment and to delete."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._lenders = Lenders(self.folder)
        self._hashes: dict[Clip, tuple[str, str]] = {}

    def collect(
        self, clips: Sequence[Clip], featurizer: Featurizer, *, workers: int, progress: Progress
    ) -> tuple[dict[str, Features], dict[str, str]]:
        """Return the features by clip id and, for clips that have none, the reason.

        With `workers` processes; 0 computes here, and so do fewer than 32 missing clips, since
        starting processes takes longer.
        """
        self._hashes.clear()
        names, unusable = self.names(clips, featurizer)
        packs = self.folder / "packs" / _hash(_FORMAT, featurizer.fingerprint)
        known = self._entries(packs)
        found: dict[str, Features] = {
            clip_id: self._lenders.arrays(known[name], name)
            for clip_id, name in names.items()
            if name in known
        }
        missing = [clip for clip in clips if clip.id in names and clip.id not in found]
        done = len(clips) - len(missing)
        progress("Computing features", done, len(clips))
        recorder = _Recorder(packs, self._lenders)
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
            found |= recorder.finish()
        features = {clip.id: found[clip.id] for clip in clips if clip.id in found}
        return features, unusable

    def names(
        self, clips: Sequence[Clip], featurizer: Featurizer
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the hash of all that decides a clip's features, or why it has none, by clip id.

        Files are read once: `collect` reads them anew, this goes by what it found.
        """
        unread = [clip for clip in clips if clip not in self._hashes]
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
        """Return the Corpus stored under a key, computing and storing it at the first call.

        Features that a survey passes on as they are, are not stored again.
        """
        path = self.folder / "surveys" / f"{_hash(_FORMAT, key)}.pack"
        stored = self._read_corpus(path)
        if stored is not None:
            return stored
        corpus = compute()
        # Through JSON at once, so that the first call returns what every later call reads.
        corpus.facts = json.loads(json.dumps(corpus.facts))
        about = {"facts": corpus.facts, "unusable": corpus.unusable}
        _write_pack(path, corpus.features, about, self._lenders)
        return self._read_corpus(path) or corpus

    def _read_corpus(self, path: Path) -> Corpus | None:
        try:
            pack = Pack(path)
            features = {clip_id: self._lenders.arrays(pack, clip_id) for clip_id in pack.groups}
            return Corpus(pack.facts["facts"], dict(features), pack.facts["unusable"])
        except DamagedFile:
            return None

    def _entries(self, folder: Path) -> dict[str, Pack]:
        """Return which pack holds an entry; a damaged pack is as good as none."""
        entries: dict[str, Pack] = {}
        for path in sorted(folder.glob("*.pack")):
            try:
                pack = self._lenders.open(path)
            except DamagedFile:
                continue
            entries |= dict.fromkeys(pack.groups, pack)
        return entries


class _Recorder:
    """Writes features into packs as they come, and returns them mapped when a pack is whole."""

    def __init__(self, folder: Path, lenders: Lenders) -> None:
        self._folder = folder
        self._lenders = lenders
        self._waiting: dict[str, tuple[str, Features]] = {}
        self._size = 0

    def add(self, clip_id: str, name: str, features: Features) -> dict[str, Features]:
        """Take the features of a clip; return those of a pack, by clip id, if it is full now."""
        self._waiting[clip_id] = (name, features)
        self._size += sum(array.nbytes for array in features.values())
        return self.finish() if self._size >= _PACK_BYTES else {}

    def finish(self) -> dict[str, Features]:
        """Write what waits; return it mapped, or nothing where it cannot be written."""
        waiting, self._waiting, self._size = self._waiting, {}, 0
        path = self._folder / f"{uuid4().hex}.pack"
        if not waiting or not _write_pack(path, dict(waiting.values()), None, None):
            return {}
        try:
            pack = self._lenders.open(path)
        except DamagedFile:
            return {}
        return {clip_id: self._lenders.arrays(pack, name) for clip_id, (name, _) in waiting.items()}


def _write_pack(
    path: Path, features: Mapping[str, Features], facts: object, lenders: Lenders | None
) -> bool:
    """Write a pack and tell whether the disk took it."""
    try:
        writer = PackWriter(path, lenders)
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
        # A clip of audio alone keeps the name it has always had.
        if not clip.arrays:
            return hashes[0], ""
        return _hash(*clip.arrays, *hashes, json.dumps([clip.lengths, clip.duration_s])), ""
    except DataError as error:
        return "", str(error)


def _hash(*parts: str) -> str:
    joined = "".join(f"{len(part)}:{part}" for part in parts)
    return hashlib.blake2b(joined.encode(errors="replace"), digest_size=16).hexdigest()

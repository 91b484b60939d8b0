"""Cache: features computed once per clip and featurizer, found again by every later run.

An entry's name is the hash of all that goes into it, so entries are never stale and several
processes may write at once. A full or read-only disk costs the cache, not the run.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from trainer.data.arrays import DamagedFile, read_arrays, write_arrays
from trainer.data.types import Clip, Features
from trainer.data.workers import compute_in_workers
from trainer.errors import DataError
from trainer.specs import Corpus, Featurizer, Progress

_FEW = 32
_FORMAT = "1"


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

    def collect(
        self, clips: Sequence[Clip], featurizer: Featurizer, *, workers: int, progress: Progress
    ) -> tuple[dict[str, Features], dict[str, str]]:
        """Return the features by clip id and, for clips that have none, the reason.

        With `workers` processes; 0 computes here, and so do fewer than 32 missing clips, since
        starting processes takes longer.
        """
        paths, unusable = self._entry_paths(clips, featurizer)
        found: dict[str, Features] = {}
        missing = []
        for clip in clips:
            if clip.id in paths:
                entry = _read_entry(paths[clip.id])
                if entry is None:
                    missing.append(clip)
                else:
                    found[clip.id] = entry
        done = len(clips) - len(missing)
        progress("Computing features", done, len(clips))
        for clip, result in _compute(missing, featurizer, workers):
            if isinstance(result, str):
                unusable[clip.id] = result
            else:
                found[clip.id] = result
                with suppress(OSError):
                    write_arrays(paths[clip.id], None, {"": result})
            done += 1
            progress("Computing features", done, len(clips))
        features = {clip.id: found[clip.id] for clip in clips if clip.id in found}
        return features, unusable

    def remember(self, key: str, compute: Callable[[], Corpus]) -> Corpus:
        """Return the Corpus stored under a key, computing and storing it at the first call."""
        path = self.folder / "surveys" / f"{_hash(_FORMAT, key)}.bin"
        try:
            about, features = read_arrays(path)
            return Corpus(about["facts"], features, about["unusable"])
        except DamagedFile:
            corpus = compute()
        # Through JSON at once, so that the first call returns what every later call reads.
        corpus.facts = json.loads(json.dumps(corpus.facts))
        with suppress(OSError):
            about = {"facts": corpus.facts, "unusable": corpus.unusable}
            write_arrays(path, about, corpus.features)
        return corpus

    def _entry_paths(
        self, clips: Sequence[Clip], featurizer: Featurizer
    ) -> tuple[dict[str, Path], dict[str, str]]:
        paths, unreadable = {}, {}
        with ThreadPoolExecutor(max_workers=8) as pool:
            hashes = list(pool.map(_hash_or_reason, clips))
        for clip, (audio, reason) in zip(clips, hashes, strict=True):
            if reason:
                unreadable[clip.id] = reason
                continue
            parts = (audio, clip.text, clip.speaker, clip.language, featurizer.fingerprint)
            name = _hash(_FORMAT, *parts)
            paths[clip.id] = self.folder / "features" / name[:2] / f"{name}.bin"
        return paths, unreadable


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


def _read_entry(path: Path) -> Features | None:
    try:
        return read_arrays(path)[1][""]
    except (DamagedFile, KeyError):
        return None


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

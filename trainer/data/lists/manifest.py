"""Read and check the lists of a dataset: every row becomes a Clip or a Problem.

No row is dropped silently and no text is replaced. This module does not import torch, so that the
web page can read manifests quickly.
"""

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.core.errors import DataError
from trainer.core.run_config import DataConfig
from trainer.core.types import Clip, Problem
from trainer.data.audio.headers import AudioError, AudioFacts, audio_facts
from trainer.data.audio.timeouts import read_with_timeout
from trainer.data.lists.folder import find_lists
from trainer.data.lists.json_lines import ENDINGS, ArrayError, array_duration_s, read_json_lines
from trainer.data.lists.ledger import clips_table, summarize, write_table
from trainer.data.lists.listing import (
    DEFAULT_SPEAKER,
    Entry,
    Listing,
    Progress,
    Source,
    no_progress,
    read_listing,
)
from trainer.data.lists.split import recording_of, split_clips

if TYPE_CHECKING:
    import pandas

Facts = dict[str, AudioFacts | AudioError | ArrayError]
"""The header facts of each row's files, or the error, by the key of the row."""

_CHUNK = 64  # Headers between two reports of progress; chosen by hand.
_TIMEOUT_S = 60.0  # A slow network share may take seconds per file; a dead one never answers.
__all__ = ["DEFAULT_SPEAKER", "Manifest", "Source", "read_manifest"]


@dataclass(frozen=True)
class Manifest:
    """The usable clips and the problems of all lists of a run, and how the lists were parsed."""

    clips: tuple[Clip, ...]
    problems: tuple[Problem, ...]
    sources: tuple[Source, ...]
    notes: tuple[str, ...] = ()

    @property
    def train(self) -> tuple[Clip, ...]:
        """The clips to train on."""
        return tuple(clip for clip in self.clips if clip.split == "train")

    @property
    def val(self) -> tuple[Clip, ...]:
        """The clips held out for validation."""
        return tuple(clip for clip in self.clips if clip.split == "val")

    @property
    def speakers(self) -> tuple[str, ...]:
        """The speakers of the usable clips, sorted."""
        return tuple(sorted({clip.speaker for clip in self.clips}))

    @property
    def languages(self) -> tuple[str, ...]:
        """The BCP-47 codes of the usable clips, sorted."""
        return tuple(sorted({clip.language for clip in self.clips}))

    @property
    def minutes(self) -> float:
        """The total duration of all usable clips."""
        return sum(clip.duration_s for clip in self.clips) / 60

    def table(self) -> "pandas.DataFrame":
        """Return the ledger: one row for each row of each list, kept or dropped."""
        return clips_table(self.clips, self.problems, self.sources)

    def summary(self) -> dict[str, Any]:
        """Return counts, durations and lost minutes as plain JSON values."""
        return summarize(self.clips, self.problems) | {
            "sources": [vars(source) | {"columns": list(source.columns)} for source in self.sources]
        }

    def write_csv(self, path: Path | str) -> None:
        """Write the ledger as CSV; cells that look like formulas are escaped."""
        write_table(self.table(), Path(path))


def read_manifest(
    data: DataConfig, *, seed: int = 1234, progress: Progress | None = None
) -> Manifest:
    """Read and check the lists that a DataConfig names.

    Raises:
        DataError: a list does not exist or cannot be parsed.
    """
    progress = progress or no_progress
    lists = _choose_lists(data)
    names = _source_names([path for path, _ in lists])
    listings = [
        _read_list(path, name, split, data, progress)
        for (path, split), name in zip(lists, names, strict=True)
    ]
    entries = [entry for listing in listings for entry in listing.entries]
    problems = [problem for listing in listings for problem in listing.problems]
    facts = _read_headers(entries, progress)
    unique, doubles = _drop_duplicates(entries, facts)
    clips, unusable = _check_audio(unique, facts, data)
    problems += doubles + unusable
    folders = {name: path.parent for (path, _), name in zip(lists, names, strict=True)}
    clips = _name_clips(clips, folders)
    notes = _speaker_notes(listings)
    if all(split == "" for _, split in lists):
        clips, note = split_clips(clips, data.eval_fraction, seed)
        notes += [note] if note else []
    rank = {name: position for position, name in enumerate(names)}
    # Each check appended its own; people read them in the order of their lists.
    problems.sort(key=lambda problem: (rank[problem.source], problem.line))
    sources = tuple(listing.source for listing in listings)
    return Manifest(tuple(clips), tuple(problems), sources, tuple(notes))


def _choose_lists(data: DataConfig) -> list[tuple[Path, str]]:
    source = data.train_csv or data.train_data
    if not source:
        raise DataError("No dataset is set. Choose a train CSV or a data folder.")
    # A folder that is entered as the train CSV is treated as a data folder.
    path = Path(source)
    lists = find_lists(path) if data.train_data or os.path.isdir(path) else [(path, "")]
    if not data.eval_csv:
        return lists
    return [(lists[0][0], "train"), (Path(data.eval_csv), "val")]


def _read_list(path: Path, name: str, split: str, data: DataConfig, progress: Progress) -> Listing:
    if path.suffix.lower() in ENDINGS:
        return read_json_lines(path, name, split, data.language, progress)
    return read_listing(path, name, split, data.language, data.columns, progress)


def _source_names(paths: Sequence[Path]) -> list[str]:
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else _distinct([str(path) for path in paths])


def _distinct(names: list[str]) -> list[str]:
    return names if len(set(names)) == len(names) else [names[0], f"{names[1]} (eval)"]


def _read_headers(entries: Sequence[Entry], progress: Progress) -> Facts:
    unique = list({entry.key: entry for entry in entries}.values())
    # More threads than cores, because headers wait for the disk; 16 is chosen by hand.
    workers = min(16, 4 * (os.cpu_count() or 1))
    facts: Facts = {}
    for entry, found in read_with_timeout(
        _header_of, unique, workers=workers, timeout_s=_TIMEOUT_S
    ):
        facts[entry.key] = _too_slow(entry) if found is None else found
        if len(facts) % _CHUNK == 0 or len(facts) == len(unique):
            progress("Reading audio headers", len(facts), len(unique))
    return facts


def _header_of(entry: Entry) -> AudioFacts | AudioError | ArrayError:
    try:
        if entry.arrays:
            # Arrays have no sample rate; 0 keeps them out of that statistic.
            return AudioFacts(array_duration_s(entry), 0, 1)
        return audio_facts(entry.audio_path)
    except (ArrayError, AudioError) as error:
        return error


def _too_slow(entry: Entry) -> AudioError:
    return AudioError(
        "unreadable_audio",
        f"{entry.audio_file} could not be read within {_TIMEOUT_S:.0f} s.",
        "Check that its network share is reachable, or copy it to this computer.",
    )


def _drop_duplicates(entries: Sequence[Entry], facts: Facts) -> tuple[list[Entry], list[Problem]]:
    """Keep the first row of each clip; if both splits contain it, keep the eval row."""
    identity = _find_copies(entries)
    kept: dict[str, Entry] = {}
    problems = []
    # False sorts before True: eval rows come first and are the ones that stay.
    for entry in sorted(entries, key=lambda entry: entry.split != "val"):
        key = identity.get(entry.key, entry.key)
        first = kept.setdefault(key, entry)
        if first is entry:
            continue
        found = facts[entry.key]
        duration_s = found.duration_s if isinstance(found, AudioFacts) else None
        problems.append(_duplicate_problem(entry, first, duration_s))
    chosen = {id(entry) for entry in kept.values()}
    return [entry for entry in entries if id(entry) in chosen], problems


def _duplicate_problem(entry: Entry, first: Entry, duration_s: float | None) -> Problem:
    where = f"line {first.line} of {first.source}"
    if first.split != entry.split:
        reason = f"{entry.audio_file} is also in the eval list, on {where}."
        return entry.problem("leak", reason, "It is kept in the eval CSV only.", duration_s)
    if first.text != entry.text:
        reason = f"{entry.audio_file} is also on {where}, with a different text."
        return entry.problem("duplicate", reason, "Keep the correct row.", duration_s)
    reason = f"{entry.audio_file} is already on {where}."
    return entry.problem("duplicate", reason, "Remove this row; nothing is lost.", duration_s)


def _find_copies(entries: Sequence[Entry]) -> dict[str, str]:
    """Map each file to the first file with the same content and text, so that copies are one clip.

    Only files with the same text and size are read.
    """
    by_text: dict[str, dict[str, None]] = defaultdict(dict)
    for entry in entries:
        if not entry.arrays:
            by_text[entry.text][entry.audio_path] = None
    first_of: dict[tuple[str, str], str] = {}
    identity = {}
    for text, paths in by_text.items():
        for path in _of_shared_size(list(paths)) if len(paths) > 1 else ():
            try:
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "blake2b").hexdigest()
            # The check of the headers reports files that cannot be opened.
            except OSError:
                continue
            identity[path] = first_of.setdefault((text, digest), path)
    return identity


def _of_shared_size(paths: Sequence[str]) -> list[str]:
    by_size: dict[int, list[str]] = defaultdict(list)
    for path in paths:
        if os.path.exists(path):
            by_size[os.path.getsize(path)].append(path)
    return [path for alike in by_size.values() if len(alike) > 1 for path in alike]


def _check_audio(
    entries: Sequence[Entry], facts: Facts, data: DataConfig
) -> tuple[list[Clip], list[Problem]]:
    clips, problems = [], []
    for entry in entries:
        found = facts[entry.key]
        if not isinstance(found, AudioFacts):
            problems.append(entry.problem(found.kind, found.reason, found.remedy))
            continue
        length = f"{entry.audio_file} is {found.duration_s:.2f} s; the"
        if found.duration_s < data.min_duration_s:
            reason = f"{length} shortest clip is {data.min_duration_s:g} s."
            remedy = "Join it with the next clip, or lower the limit on the Data tab."
            problems.append(entry.problem("too_short", reason, remedy, found.duration_s))
        elif found.duration_s > data.max_duration_s:
            reason = f"{length} longest clip is {data.max_duration_s:g} s."
            remedy = "Split the clip, or raise the limit on the Data tab."
            problems.append(entry.problem("too_long", reason, remedy, found.duration_s))
        else:
            clips.append(
                Clip(
                    "", entry.audio_path, entry.text, entry.speaker, entry.language,
                    found.duration_s, found.sample_rate, entry.split or "train", entry.source,
                    entry.line, arrays=entry.arrays, lengths=entry.lengths,
                )
            )  # fmt: skip
    return clips, problems


def _name_clips(clips: Sequence[Clip], folders: dict[str, Path]) -> list[Clip]:
    """Fill in ids and recordings from paths relative to the list, so that they survive a move."""
    named, taken = [], set()
    for clip in clips:
        folder = os.path.abspath(folders[clip.source])
        paths = [_below(folder, path) for path in clip.content_paths]
        clip_id = _hash_of("\n".join(paths), clip.text)
        # Lists in two folders may name the same relative path and text.
        if clip_id in taken:
            clip_id = _hash_of("\n".join(clip.content_paths), clip.text)
        taken.add(clip_id)
        # Pairs with the same target belong to one recording, named after the target's codes.
        codes = clip.arrays.get("target_codes") or clip.arrays.get("codes")
        named_by = _below(folder, codes) if codes else paths[0]
        named.append(replace(clip, id=clip_id, recording=recording_of(named_by)))
    return named


def _below(folder: str, path: str) -> str:
    inside = path.startswith(folder.rstrip("/") + "/")
    return os.path.relpath(path, folder) if inside else path


def _hash_of(path: str, text: str) -> str:
    # 64 bits: among a million clips, two are equal with a chance of 3e-8.
    return hashlib.blake2b(f"{path}\n{text}".encode(errors="replace"), digest_size=8).hexdigest()


def _speaker_notes(listings: Sequence[Listing]) -> list[str]:
    notes = []
    unnamed = [entry for listing in listings for entry in listing.entries
               if entry.speaker == DEFAULT_SPEAKER]  # fmt: skip
    if unnamed:
        notes.append(
            f"{len(unnamed)} rows have no speaker; they are treated as one, '{DEFAULT_SPEAKER}'."
        )
    return notes

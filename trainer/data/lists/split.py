"""Choose the clips to hold out for validation when there is no eval CSV.

Clips of one recording share a room, a mood and often half a word. Splitting a recording makes
validation look better than it is, so whole recordings are held out if they can be identified.
"""

import hashlib
import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from trainer.core.types import Clip

# Start and end of a cut: decimals are seconds, five digits or more are milliseconds or samples.
_SPAN = re.compile(r"[ _.\-]+\d+\.\d+[ _\-]+\d+\.\d+$|[ _.\-]+\d{5,}[_\-]\d{5,}$")
_SEGMENT = re.compile(
    r"[ _.\-]*(?:(?<![a-z])(?:seg|segment|chunk|part|clip|utt|sent|line)[ _.\-]?)?\d+$", re.I
)
_PLAIN_FOLDERS = ("wavs", "clips", "wav", "audio", "raw", ".")  # hold the whole dataset
# Chosen by hand: with the default fraction, at most 50 clips, so that validation stays fast.
_LARGEST_DEFAULT = 50
_DEFAULT_FRACTION = 0.05


def recording_of(relative_path: str) -> str:
    """Name the source recording of a clip from its path relative to the list.

    A segment number at the end is removed (`talk_0012`, `LJ001-0001`, `talk_3.20_7.85`); for a
    name that is only a number, the folder is the recording.
    """
    path = PurePosixPath(relative_path)
    folder = "" if str(path.parent).lower() in _PLAIN_FOLDERS else str(path.parent)
    stem = path.stem
    without = _SPAN.sub("", stem)
    if without == stem:
        without = _SEGMENT.sub("", stem)
    return f"{folder}/{without}".strip("/")


def split_clips(clips: Sequence[Clip], fraction: float, seed: int) -> tuple[list[Clip], str]:
    """Mark clips as `train` or `val`; return them and a note if recordings had to be split.

    The target is `fraction` of the clips, at least 2 (1 of fewer than 4), and at most 50 unless
    `fraction` is above 5 %. Recordings are ordered by the hash of their name and the seed, so
    adding clips does not move others. A speaker's only recording stays in training.
    """
    if fraction <= 0 or len(clips) < 2:
        return list(clips), ""
    target = max(min(2, len(clips) // 2), math.ceil(fraction * len(clips)))
    if fraction <= _DEFAULT_FRACTION:
        target = min(target, _LARGEST_DEFAULT)
    groups, note = _movable_recordings(clips), ""
    if not groups:
        groups = {clip.id: [clip.id] for clip in clips}
        note = (
            "Recordings cannot be told apart by the names of the clips, so single clips are held "
            "out: validation may look better than on a new recording."
        )
    held_out = _hold_out(groups, _owners(clips, groups), target, seed)
    marked = [replace(clip, split="val" if clip.id in held_out else "train") for clip in clips]
    return marked, note


def _movable_recordings(clips: Sequence[Clip]) -> dict[str, list[str]]:
    """Group clip ids by recording, without recordings that are a speaker's only one."""
    recordings: dict[str, list[str]] = defaultdict(list)
    by_speaker: dict[str, set[str]] = defaultdict(set)
    for clip in clips:
        recordings[clip.recording].append(clip.id)
        by_speaker[clip.speaker].add(clip.recording)
    fixed = {next(iter(names)) for names in by_speaker.values() if len(names) == 1}
    return {name: ids for name, ids in recordings.items() if name not in fixed}


def _owners(clips: Sequence[Clip], groups: dict[str, list[str]]) -> dict[str, set[str]]:
    """Return the speakers of each group."""
    speakers = {clip.id: clip.speaker for clip in clips}
    return {name: {speakers[clip_id] for clip_id in ids} for name, ids in groups.items()}


def _hold_out(
    groups: dict[str, list[str]], owners: dict[str, set[str]], target: int, seed: int
) -> set[str]:
    remaining: dict[str, int] = defaultdict(int)
    for names in owners.values():
        for speaker in names:
            remaining[speaker] += 1
    held_out: set[str] = set()
    order = sorted(groups, key=lambda name: _place(name, seed))
    smallest = min(order, key=lambda name: len(groups[name]))
    for name in [*order, smallest]:
        # A recording may exceed the target by half (chosen by hand); larger ones are skipped.
        fits = len(held_out) + len(groups[name]) <= max(target, 1) * 1.5
        is_last_resort = name == smallest and not held_out
        # At least one recording of each speaker must stay in training.
        leaves_some = all(remaining[speaker] > 1 for speaker in owners[name])
        if len(held_out) < target and (fits or is_last_resort) and leaves_some:
            held_out.update(groups[name])
            for speaker in owners[name]:
                remaining[speaker] -= 1
    return held_out


def _place(name: str, seed: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()

"""Find where to cut a long recording into clips, from the pauses in its levels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FRAME_S = 0.01
"""Seconds per level."""

# Chosen by hand.
_FLOOR_DB = -100.0
_CLEAR_DB = 10.0
"""If the loud frames are less than this above the floor, speech and pauses cannot be separated."""
_FAINT_DB = 45.0
"""Frames more than this below the loud frames are never speech."""
_BLIP_S = 0.06  # Shorter sounds are clicks, not speech.


@dataclass(frozen=True)
class SegmentationSettings:
    """Settings of the cutter, in seconds; `pause_s` is the shortest pause to cut at."""

    shortest_s: float = 1.0
    longest_s: float = 11.0
    pause_s: float = 0.25
    gap_s: float = 1.0
    """A pause of at least this length always ends a clip."""
    margin_s: float = 0.12
    """Silence that is kept before and after speech."""


@dataclass(frozen=True)
class Span:
    """A part of a recording, in seconds."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


def find_clips(levels: np.ndarray, cutting: SegmentationSettings) -> list[Span]:
    """Return the clips of a recording, in order, none longer than `cutting.longest_s`.

    Cuts are placed in pauses, preferably long ones; speech without pauses is cut at its quietest
    point. Speech shorter than `shortest_s`, even joined with its neighbors, is dropped.

    levels: (frames,) dB of every FRAME_S.
    """
    runs = [
        part
        for run in find_speech(levels, cutting.pause_s)
        for part in _split_run(run, levels, cutting)
    ]
    whole_s = len(levels) * FRAME_S
    return [
        _with_margins(runs, first, last, whole_s, cutting.margin_s)
        for first, last in _group(runs, cutting)
        if runs[last].end_s - runs[first].start_s >= cutting.shortest_s
    ]


def find_speech(levels: np.ndarray, pause_s: float) -> list[Span]:
    """Return the spans of speech; pauses shorter than `pause_s` are part of them.

    levels: (frames,) dB of every FRAME_S.
    """
    if not len(levels):
        return []
    levels = np.maximum(levels, _FLOOR_DB)
    loud, floor = np.percentile(levels, 95), np.percentile(levels, 10)
    if loud - floor < _CLEAR_DB:
        return [Span(0.0, len(levels) * FRAME_S)] if loud > _FLOOR_DB + _CLEAR_DB else []
    # 35 % of the way from the noise floor to speech, chosen by hand.
    threshold = max(floor + 0.35 * (loud - floor), loud - _FAINT_DB)
    is_speech = np.concatenate([[False], levels > threshold, [False]])
    edges = np.flatnonzero(is_speech[1:] != is_speech[:-1]).reshape(-1, 2) * FRAME_S
    joined: list[list[float]] = []
    for start, end in edges.tolist():
        if joined and start - joined[-1][1] < pause_s:
            joined[-1][1] = end
        else:
            joined.append([start, end])
    return [Span(start, end) for start, end in joined if end - start >= _BLIP_S]


def _split_run(run: Span, levels: np.ndarray, cutting: SegmentationSettings) -> list[Span]:
    """Split speech that is too long for a clip at its quietest points."""
    parts = []
    start_s, room_s = run.start_s, cutting.longest_s - 2 * cutting.margin_s
    while (left_s := run.end_s - start_s) > room_s:
        # The rest must be long enough for a clip too.
        most_s = min(room_s, left_s - cutting.shortest_s)
        first, last = (round((start_s + at_s) / FRAME_S) for at_s in (0.4 * room_s, most_s))
        window = np.convolve(levels[first:last], np.ones(5) / 5, mode="same")
        cut_s = (first + int(window[2:-2].argmin()) + 2) * FRAME_S
        parts.append(Span(start_s, cut_s))
        start_s = cut_s
    return [*parts, Span(start_s, run.end_s)]


def _group(runs: Sequence[Span], cutting: SegmentationSettings) -> list[tuple[int, int]]:
    """Group runs into clips (first, last) at the least total cost, by dynamic programming."""
    room_s = cutting.longest_s - 2 * cutting.margin_s
    best: list[tuple[float, int]] = [(0.0, 0)]  # of the first n runs: cost, first of the last clip
    for end in range(len(runs)):
        choices = []
        for first in range(end, -1, -1):
            length_s = runs[end].end_s - runs[first].start_s
            is_torn = first < end and _pause(runs, first) >= cutting.gap_s
            if first < end and (length_s > room_s or is_torn):
                break
            choices.append((best[first][0] + _cost(runs, first, length_s, cutting), first))
        best.append(min(choices))
    groups, end = [], len(runs)
    while end:
        groups.append((best[end][1], end - 1))
        end = best[end][1]
    return groups[::-1]


def _cost(
    runs: Sequence[Span], first: int, length_s: float, cutting: SegmentationSettings
) -> float:
    """Return the cost of a clip: deviation from the middle length, and a cut in a short pause."""
    wanted_s = (cutting.shortest_s + cutting.longest_s) / 2
    oddness = (length_s - wanted_s) / wanted_s
    before_s = _pause(runs, first - 1) if first else cutting.gap_s
    return oddness**2 + 0.5 * (1 - min(before_s, cutting.gap_s) / cutting.gap_s)


def _pause(runs: Sequence[Span], index: int) -> float:
    """Return the seconds between a run and the next."""
    return runs[index + 1].start_s - runs[index].end_s


def _with_margins(
    runs: Sequence[Span], first: int, last: int, whole_s: float, margin_s: float
) -> Span:
    """Return the span of runs `first` to `last` with margins of at most half of each pause."""
    start_s, end_s = runs[first].start_s, runs[last].end_s
    before_s = _pause(runs, first - 1) / 2 if first else start_s
    after_s = _pause(runs, last) / 2 if last + 1 < len(runs) else whole_s - end_s
    return Span(start_s - min(margin_s, before_s), end_s + min(margin_s, after_s))

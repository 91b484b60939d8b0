"""Find what tells how a run stands without reading its whole event log.

A log is mostly steps: a million of them are 760 MB. What a status needs besides the newest steps
are a few rare lines, such as the last start, which may lie far back. `events.index.json` holds
where they are, and the offset up to which it knows the log. It can be rebuilt at any time: a
missing, damaged or foreign index costs one search of the log, which parses none of the steps.
"""

import contextlib
import json
import re
import zlib
from bisect import bisect_right
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from trainer.core.atomic_io import write_atomic
from trainer.core.device import MIB
from trainer.core.events import (
    STEP_SIGN,
    EventLog,
    RunStarted,
    StepDone,
    parse_event,
    read_blocks,
)
from trainer.runs.metric_store import MetricStore

_FORMAT = 1
_STRIDE = 1000
"""Steps between two marks: an index of 20 kB for a million steps, and 8 ms to read a stretch."""
_WINDOW = 200
"""Steps that a status needs: the estimate of the time left takes the median of so many."""
_MOST = {"OptionsChanged": 10_000, "RunStarted": 50, "ValidationDone": 50}
"""Lines kept of a kind: all changes of options; the newest of others, as many as `latest` searches.
Of `RunStarted`, because each may have voided validations."""
_ONE = ("RunFinished", "PlanChanged", "RunAdapted", "PhaseChanged")
_CHECKED = 4096
"""Bytes before the index's end whose checksum tells this log from another one."""
_SAVED_EVERY = 4 * MIB
"""Bytes of log: searching so many takes 2 ms, so a status need not write the index each time."""
_MOST_READ = 16 * MIB  # bytes that a status parses at most for its newest steps: 0.2 s
_KIND = re.compile(rb'\{"time": [^,]{1,32}, "type": "(\w+)"')


@dataclass
class LogIndex:
    """The offsets of a log's rare lines and of every thousandth step, known up to `end`."""

    end: int = 0
    lines: dict[str, list[int]] = field(default_factory=dict)
    marks: list[list[int]] = field(default_factory=list)
    """[step, offset]: steps that no later start made void, and the starts themselves."""
    unmarked: int = 0
    """Steps since the last mark of a step."""

    def update(self, file: BinaryIO) -> None:
        """Search the part of an open log that is not known yet."""
        for begin, block in read_blocks(file, self.end):
            position = 0
            # One look at each line, 0.3 us; parsing it would take 20 times as long.
            while (end := block.find(b"\n", position)) >= 0:
                if block.find(STEP_SIGN, position, end) < 0:
                    self._note(block[position:end], begin + position)
                elif self.unmarked % _STRIDE:
                    self.unmarked += 1
                else:
                    self._mark(block[position:end], begin + position)
                position = end + 1
            self.end = begin + len(block)

    def begin_of(self, step: int) -> int:
        """Return an offset from which the log holds this step and those after it."""
        place = bisect_right(self.marks, step, key=lambda mark: mark[0])
        return self.marks[place - 1][1] if place else 0

    @property
    def begin_of_newest(self) -> int:
        """An offset from which the log holds the newest steps that a status needs."""
        if not self.marks:
            return 0
        step, last = self.marks[-1]
        begin = self.begin_of(step - _WINDOW)
        # A run that went back by far has many void steps between; its newest start will do.
        return begin if last - begin < _MOST_READ else last

    def _mark(self, line: bytes, offset: int) -> None:
        logged = parse_event(line, offset)
        if logged is not None and isinstance(logged.event, StepDone):
            self.marks.append([logged.event.step, offset])
            self.unmarked = 1

    def _note(self, line: bytes, offset: int) -> None:
        match = _KIND.match(line)
        if match is None:
            return
        kind = match[1].decode("ascii")
        if kind in _MOST or kind in _ONE:
            found = self.lines.setdefault(kind, [])
            found.append(offset)
            del found[: -_MOST.get(kind, 1)]
        logged = parse_event(line, offset) if kind == "RunStarted" else None
        if logged is not None and isinstance(logged.event, RunStarted):
            first_step = logged.event.first_step
            self.marks = [mark for mark in self.marks if mark[0] < first_step]
            self.marks.append([first_step, offset])


def refresh_index(log: EventLog) -> None:
    """Bring the stored index of a log up to date; called by the log's writer at checkpoints."""
    with contextlib.suppress(OSError), log.open() as file:  # training goes on without an index
        index = _load(log, file)
        index.update(file)
        _save(log, file, index)


def read_newest(log: EventLog) -> MetricStore:
    """Return the latest facts and the newest rows of a run, without reading all of its log."""
    with log.open() as file:
        return read_newest_of(log, file)[0]


def read_newest_of(log: EventLog, file: BinaryIO) -> tuple[MetricStore, LogIndex]:
    """Return the latest facts and newest rows of an open log, and its index."""
    index = _load(log, file)
    known = index.end
    index.update(file)
    if index.end - known >= _SAVED_EVERY:
        _save(log, file, index)
    store, begin = MetricStore(log), index.begin_of_newest
    for offset in sorted(offset for found in index.lines.values() for offset in found):
        if offset < begin:
            file.seek(offset)
            store.take([file.readline()])
    store.offset, store.is_whole = begin, begin == 0
    store.read(read_blocks(file, begin))
    return store, index


def index_path(log: EventLog) -> Path:
    """Return where the index of a log is stored."""
    return log.path.with_name("events.index.json")


def _load(log: EventLog, file: BinaryIO) -> LogIndex:
    """Return the stored index, or an empty one if it is missing, damaged or of another log."""
    try:
        values = json.loads(index_path(log).read_text(encoding="utf-8"))
        index = LogIndex(
            int(values["end"]),
            {str(kind): [int(each) for each in found] for kind, found in values["lines"].items()},
            [[int(step), int(offset)] for step, offset in values["marks"]],
            int(values["unmarked"]),
        )
        offsets = [*chain(*index.lines.values()), *(offset for _, offset in index.marks)]
        is_ours = values["format"] == _FORMAT and values["check"] == _checksum(file, index.end)
        return index if is_ours and all(0 <= each < index.end for each in offsets) else LogIndex()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError,
            RecursionError):  # fmt: skip
        return LogIndex()


def _save(log: EventLog, file: BinaryIO, index: LogIndex) -> None:
    """Replace the stored index; if that is not possible, the next reader searches again."""
    path = index_path(log)
    with contextlib.suppress(OSError):  # a folder of another user, or a full disk
        values = {"format": _FORMAT, "check": _checksum(file, index.end)} | asdict(index)
        write_atomic(path, json.dumps(values))


def _checksum(file: BinaryIO, end: int) -> int:
    """Return the checksum of the bytes before an offset, or -1 if the log is shorter."""
    begin = max(0, end - _CHECKED)
    file.seek(begin)
    text = file.read(end - begin)
    return zlib.crc32(text) if len(text) == end - begin else -1

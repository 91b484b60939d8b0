"""Define the events of a run and the append-only log that stores them.

The log is the only record of a run's progress; everything the page shows is derived from it.
"""

import dataclasses
import io
import json
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, BinaryIO, get_args, get_origin, get_type_hints

from trainer.core.atomic_io import missing_line_end
from trainer.core.device import MIB


# Names and fields of events are stored in every run's events.jsonl. Renaming one makes old runs
# unreadable; a new field needs a default.
@dataclass(frozen=True)
class Event:
    """One fact about a run."""


@dataclass(frozen=True)
class RunStarted(Event):
    """A training process started; steps from `first_step` on that an earlier one logged are void.

    `optimizations` maps each registry entry to its measured state: `{"on": bool, "detail": str}`.
    """

    first_step: int
    last_step: int
    steps_per_epoch: int
    facts: dict[str, Any] = field(default_factory=dict)
    optimizations: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class PhaseChanged(Event):
    """The process started or continued a phase without steps; `total` is 0 if unknown."""

    phase: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True)
class StepDone(Event):
    """One optimizer update with its metrics by name."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class ValidationDone(Event):
    """One pass over the val clips with its metrics by name."""

    step: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class PreviewMade(Event):
    """A preview was written: audio of a fixed sentence, or a picture and its description.

    `path` is relative to the run folder and ends in .wav or .svg; a picture has no speaker.
    """

    step: int
    path: str
    text: str
    speaker: str


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """A checkpoint was published; `path` is relative to the run folder.

    `seconds` is how long writing took, `waited_s` how long training waited for it.
    """

    step: int
    path: str
    best: bool
    size_bytes: int
    seconds: float
    waited_s: float = 0.0


@dataclass(frozen=True)
class Notice(Event):
    """A message for the user; `level` is `info`, `warning` or `error`.

    `offer` names an action that the page offers as a button: `rescue` starts another run with
    AdamW.
    """

    level: str
    text: str
    remedy: str = ""
    step: int | None = None
    offer: str = ""


@dataclass(frozen=True)
class PlanChanged(Event):
    """The user changed the length of the run: at `step`, its end moved to `last_step`."""

    step: int
    last_step: int


@dataclass(frozen=True)
class OptionsChanged(Event):
    """The user changed options of a run stopped at `step`; `values` are as in `run.json`."""

    step: int
    values: dict[str, Any]


@dataclass(frozen=True)
class RunAdapted(Event):
    """The run changed its own settings in order to continue; holds all of them, not only the new.

    `parts`: how many parts each micro-batch is split into. `checkpointing`: whether gradient
    checkpointing was turned on. `rate`: factor on the learning rate. `full_precision`: whether
    mixed precision was turned off. `rollbacks`: how often the run rolled back to a checkpoint.
    `regrouped`: how often its process was replaced because memory was fragmented.
    """

    step: int
    reason: str
    parts: int = 1
    checkpointing: bool = False
    rate: float = 1.0
    full_precision: bool = False
    rollbacks: int = 0
    regrouped: int = 0

    def __post_init__(self) -> None:
        # A damaged line must not change a run: more parts than a batch can have clips, or a rate
        # that would stop or speed up training, are skipped like any line that is no event.
        if not (1 <= self.parts <= 2**16 and 0 < self.rate <= 1):
            raise ValueError(f"impossible adaptation: {self.parts} parts, rate {self.rate}")


@dataclass(frozen=True)
class ResumeVerified(Event):
    """Steps repeated after a resume were compared with the same steps logged before it.

    `difference` is the largest relative difference of loss and gradient norm; 0 means identical
    to the last bit.
    """

    step: int
    num_steps: int
    difference: float


@dataclass(frozen=True)
class RunFinished(Event):
    """The run ended; `outcome` is `finished`, `stopped` or `failed`."""

    outcome: str
    step: int
    reason: str = ""
    remedy: str = ""


Emit = Callable[[Event], None]
"""Reports an event of a run."""

Subscriber = Callable[[Event], Iterable[Event] | None]
"""Receives each event once and may return further events, which are reported after it."""


class Publisher:
    """An `Emit` that passes each event to every subscriber, in the order of their list.

    Events that subscribers return wait until all of them have received the current one, so all
    subscribers see all events in the same order.
    """

    def __init__(self, *subscribers: Subscriber) -> None:
        self.subscribers = subscribers

    def __call__(self, event: Event) -> None:
        """Pass an event, and those that follow from it, to every subscriber."""
        waiting = deque([event])
        while waiting:
            current = waiting.popleft()
            for subscriber in self.subscribers:
                waiting.extend(subscriber(current) or ())


# Events kept in memory while the disk is full: a few megabytes, chosen by hand. The oldest are
# dropped first.
MOST_WAITING = 10_000
_BLOCK_BYTES = MIB
"""Read at once: some 1,300 steps, which are parsed together; more was no faster (measured)."""
STEP_SIGN = b'"type": "StepDone"'
"""What `append` writes near the beginning of the line of a StepDone, and of no other event."""
# By class name, which is what `append` writes.
EVENT_TYPES: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}


@dataclass(frozen=True)
class LoggedEvent:
    """An event with the time it was logged (seconds since 1970) and the byte offset after it."""

    event: Event
    time: float
    offset: int


class EventLog:
    """An append-only file of events, one JSON object per line: one writer, many readers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lost = 0
        """Events that were dropped because too many were waiting."""
        self._waiting: list[bytes] = []
        self._tail_is_whole = False  # unknown until the first write looks at the file
        self._synced_at = 0.0

    def append(self, event: Event) -> None:
        """Write an event; while the disk is full, events wait in memory and are written later."""
        values = {"time": time.time(), "type": type(event).__name__} | dataclasses.asdict(event)
        self._waiting.append(json.dumps(_plain(values), ensure_ascii=False).encode() + b"\n")
        self.num_lost += max(0, len(self._waiting) - MOST_WAITING)
        self._waiting = self._waiting[-MOST_WAITING:]
        try:
            self._write_waiting()
        except OSError:
            # Training continues. The line may be half written; the next one starts on a new line.
            self._tail_is_whole = False

    @property
    def num_waiting(self) -> int:
        """The number of events that are not written yet."""
        return len(self._waiting)

    @property
    def size(self) -> int:
        """The size of the file in bytes, 0 if it does not exist yet."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def follow(self, offset: int = 0) -> Iterator[LoggedEvent]:
        """Yield the events after a byte offset; torn, damaged and unknown lines are skipped."""
        for begin, block in self.blocks(offset):
            for line in block.split(b"\n")[:-1]:
                begin += len(line) + 1
                logged = parse_event(line, begin)
                if logged is not None:
                    yield logged

    def blocks(self, offset: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield whole lines after a byte offset in large blocks, each with its own offset."""
        with self.open() as file:
            yield from read_blocks(file, offset)

    def open(self) -> BinaryIO:
        """Open the log for reading; one that does not exist yet is empty."""
        # A FIFO or a device would block the reader for good.
        return self.path.open("rb") if self.path.is_file() else io.BytesIO()

    def _write_waiting(self) -> None:
        # Unbuffered, so that a line is written by one call and a short write is noticed.
        with self.path.open("a+b", buffering=0) as file:
            if not self._tail_is_whole:
                file.write(missing_line_end(file))
                self._tail_is_whole = True
            while self._waiting:
                if file.write(self._waiting[0]) != len(self._waiting[0]):
                    raise OSError("only part of the line was written")
                self._waiting.pop(0)
            # At most once a second: on a slow disk, an fsync per line takes longer than a step.
            if time.monotonic() - self._synced_at > 1.0:
                os.fsync(file.fileno())
                self._synced_at = time.monotonic()


def read_blocks(file: BinaryIO, offset: int) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of an open log after a byte offset, as `EventLog.blocks` does.

    A line without its end is still being written and left for the next call.
    """
    file.seek(offset)
    torn: list[bytes] = []  # a line may be longer than a block
    while block := file.read(_BLOCK_BYTES):
        end = block.rfind(b"\n") + 1
        if end:
            lines = b"".join((*torn, block[:end]))
            yield offset, lines
            offset += len(lines)
            torn = []
        torn.append(block[end:])


def is_step(line: bytes) -> bool:
    """Whether a line is a StepDone as `append` writes it; nearly all lines of a long log are."""
    return line.find(STEP_SIGN, 0, 64) >= 0  # the time before it has at most 20 digits


def parse_event(line: bytes, offset: int) -> LoggedEvent | None:
    """Return the event of one line, or None if the line is torn, damaged or of a newer version."""
    try:
        values = json.loads(line)
        logged_at = float(values.pop("time"))
        kind = EVENT_TYPES[values.pop("type")]
        accepted = _accepted_types(kind)
        if not all(_is_of_type(value, accepted[name]) for name, value in values.items()):
            return None
        return LoggedEvent(kind(**values), logged_at, offset)
    # A file may hold anything: 10,000 nested brackets are a RecursionError.
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return None


@cache
def _accepted_types(kind: type[Event]) -> dict[str, Any]:
    return get_type_hints(kind)


def _is_of_type(value: Any, wanted: Any) -> bool:
    """Whether a JSON value suits the annotation of an event's field."""
    if isinstance(wanted, UnionType):
        return any(_is_of_type(value, each) for each in get_args(wanted))
    if get_origin(wanted) is dict:
        each = get_args(wanted)[1]
        return isinstance(value, dict) and all(_is_of_type(v, each) for v in value.values())
    if isinstance(value, bool) or wanted not in (int, float):
        return wanted is Any or isinstance(value, wanted)
    if isinstance(value, int):
        return abs(value) <= 2**53  # beyond it, columns of floats skip integers
    return wanted is float and isinstance(value, float | NoneType)  # `_plain` writes NaN as null


def _plain(value: Any) -> Any:
    """Return JSON values; NaN and infinities, which JSON lacks, become None."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

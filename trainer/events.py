"""Events: the facts a run leaves behind, and the append-only log they are written to."""

import dataclasses
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.durable import line_end_if_torn


@dataclass(frozen=True)
class Event:
    """One fact from a run."""


@dataclass(frozen=True)
class RunStarted(Event):
    """A training process took the run; rows of an earlier process from `first_step` on are void.

    `optimizations` maps each catalog entry to its measured state: `{"on": bool, "detail": str}`.
    """

    first_step: int
    last_step: int
    steps_per_epoch: int
    facts: dict[str, Any] = field(default_factory=dict)
    optimizations: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class PhaseChanged(Event):
    """What the process does while no step runs; `total` 0 means of unknown length."""

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
    """What a checkpoint would say: audio of a fixed sentence, or a picture and what it shows.

    `path`, relative to the run folder, ends in .wav or in .svg; a picture has no speaker.
    """

    step: int
    path: str
    text: str
    speaker: str


@dataclass(frozen=True)
class CheckpointSaved(Event):
    """A checkpoint was published; `path` is relative to the run folder.

    `seconds` is what the writing took, `waited_s` how long training stood still for it.
    """

    step: int
    path: str
    best: bool
    size_bytes: int
    seconds: float
    waited_s: float = 0.0


@dataclass(frozen=True)
class Notice(Event):
    """Something a person should know; `level` is `info`, `warning` or `error`.

    `offer` names what the page can do about it with one press: `rescue`, another run with AdamW.
    """

    level: str
    text: str
    remedy: str = ""
    step: int | None = None
    offer: str = ""


@dataclass(frozen=True)
class PlanChanged(Event):
    """A person changed how far the run goes: at `step`, its end moved to `last_step`."""

    step: int
    last_step: int


@dataclass(frozen=True)
class OptionsChanged(Event):
    """A person changed options of a run that was stopped at `step`; `values` as in `run.json`."""

    step: int
    values: dict[str, Any]


@dataclass(frozen=True)
class RunAdapted(Event):
    """What a run changed by itself so that it can go on, all of it as it holds from here on.

    `parts`: pieces a micro-batch is cut into. `checkpointing`: whether gradient checkpointing was
    turned on. `rate`: factor on the learning rate. `full_precision`: whether mixed precision was
    turned off. `rollbacks`: how often the run went back to a checkpoint. `regrouped`: how often its
    process ended to get memory that lay in pieces in order.
    """

    step: int
    reason: str
    parts: int = 1
    checkpointing: bool = False
    rate: float = 1.0
    full_precision: bool = False
    rollbacks: int = 0
    regrouped: int = 0


@dataclass(frozen=True)
class ResumeVerified(Event):
    """Steps done again after a resume were compared with those logged before it.

    `difference` is the largest relative one of loss and gradient norm; 0: equal to the last bit.
    """

    step: int
    num_steps: int
    difference: float


@dataclass(frozen=True)
class RunFinished(Event):
    """The process ended by itself; `outcome` is `finished`, `stopped` or `failed`."""

    outcome: str
    step: int
    reason: str = ""
    remedy: str = ""


MOST_WAITING = 10_000
"""Events that wait in memory while the disk is full, a few megabytes."""
EVENT_TYPES: dict[str, type[Event]] = {kind.__name__: kind for kind in Event.__subclasses__()}


@dataclass(frozen=True)
class LoggedEvent:
    """An event with the time it was logged (seconds since 1970) and the byte offset behind it."""

    event: Event
    time: float
    offset: int


class EventLog:
    """An append-only file of events, one JSON object a line: one writer, many followers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_lost = 0
        """Events that were given up because too many waited."""
        self._waiting: list[bytes] = []
        self._tail_is_whole = False
        self._synced_at = 0.0

    def append(self, event: Event) -> None:
        """Write an event; after a full disk the lines wait in memory and are written later."""
        values = {"time": time.time(), "type": type(event).__name__} | dataclasses.asdict(event)
        self._waiting.append(json.dumps(_plain(values), ensure_ascii=False).encode() + b"\n")
        self.num_lost += max(0, len(self._waiting) - MOST_WAITING)
        self._waiting = self._waiting[-MOST_WAITING:]
        try:
            self._write_waiting()
        except OSError:
            self._tail_is_whole = False

    @property
    def num_waiting(self) -> int:
        """Events that the disk has not taken yet."""
        return len(self._waiting)

    def follow(self, offset: int = 0) -> Iterator[LoggedEvent]:
        """Yield the whole lines behind a byte offset; a torn or unknown line is passed over."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    offset += len(line)
                    logged = _parse(line, offset)
                    if logged is not None:
                        yield logged
        except FileNotFoundError:
            return

    def _write_waiting(self) -> None:
        with self.path.open("ab", buffering=0) as file:
            if not self._tail_is_whole:
                file.write(line_end_if_torn(self.path))
                self._tail_is_whole = True
            while self._waiting:
                if file.write(self._waiting[0]) != len(self._waiting[0]):
                    raise OSError("the disk took only a part of the line")
                self._waiting.pop(0)
            # Once a second: an fsync a line would cost a slow disk more than the step itself.
            if time.monotonic() - self._synced_at > 1.0:
                os.fsync(file.fileno())
                self._synced_at = time.monotonic()


def _parse(line: bytes, offset: int) -> LoggedEvent | None:
    try:
        values = json.loads(line)
        logged_at = float(values.pop("time"))
        event = EVENT_TYPES[values.pop("type")](**values)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return LoggedEvent(event, logged_at, offset)


def _plain(value: Any) -> Any:
    """Return JSON values; NaN and infinities, which JSON lacks, become None."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value

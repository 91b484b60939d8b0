"""The metrics of one run in memory, as columns read from its event log and served by cursor."""

import json
import math
import threading
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.core.events import (
    CheckpointSaved,
    Event,
    EventLog,
    Notice,
    OptionsChanged,
    PhaseChanged,
    PlanChanged,
    PreviewMade,
    RunAdapted,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
    is_step,
    parse_event,
)
from trainer.runs.points import Points, table_of

Answer = dict[str, Any]  # JSON values
Blocks = Iterable[tuple[int, bytes]]
"""Whole lines of a log with their offset, as `EventLog.blocks` yields them."""
_SEARCHED = 50
"""Rows in which the newest value of a metric is looked for: device metrics come every 2 s only."""
_MARK_BYTES = 1500
"""Memory of a mark with its values, measured on notices and checkpoints."""
_MARKS = {
    PlanChanged: "plan",
    RunFinished: "finished",
    CheckpointSaved: "checkpoint",
    PreviewMade: "preview",
    Notice: "notice",
    RunStarted: "started",
}
"""The events on the page's time axis, and the names it knows them by."""
_BETWEEN_STEPS = (ValidationDone, CheckpointSaved)  # mean the same before or after a step


@dataclass
class Mark:
    """An event on the time axis: a checkpoint, preview, notice, start or end."""

    kind: str
    step: int
    time: float
    values: dict[str, Any]


class MetricStore:
    """The columns, marks and latest facts of one run, shared by all pages; thread-safe."""

    def __init__(self, log: EventLog) -> None:
        self.log, self.offset = log, 0
        self.is_whole = True
        """Whether all steps are here, not only the newest ones (see `read_newest`)."""
        self.generation = 0
        self.steps = Points()
        self.validations = Points()
        self.marks: list[Mark] = []
        self.started: RunStarted | None = None
        self.finished: RunFinished | None = None
        self.phase: PhaseChanged | None = None
        self.plan: PlanChanged | None = None
        self.adapted: RunAdapted | None = None
        self.changes: list[OptionsChanged] = []
        self.updated_at = 0.0
        # Re-entrant, because handling an event reads `last_step`, which takes the lock too.
        self._lock = threading.RLock()

    def update(self) -> None:
        """Read the new events of the log."""
        with self._lock:
            self.read(self.log.blocks(self.offset))

    def read(self, blocks: Blocks, until: float = math.inf) -> None:
        """Read consecutive lines of the log, at least until the step `until`."""
        with self._lock:
            for begin, block in blocks:
                self.take(block.split(b"\n")[:-1])
                self.offset = begin + len(block)
                if self.last_step >= until:
                    return

    def take(self, lines: Iterable[bytes]) -> None:
        """Read lines that need not be consecutive; damaged and unknown ones are skipped."""
        steps = []
        for line in lines:
            if is_step(line):
                steps.append(line)
                continue
            logged = parse_event(line, 0)
            if logged is not None:
                if not isinstance(logged.event, _BETWEEN_STEPS):
                    self._take_steps(steps)  # the larger a batch, the faster it is parsed
                    steps = []
                self.updated_at = logged.time
                self._take_event(logged.event, logged.time)
        self._take_steps(steps)

    @property
    def last_step(self) -> int:
        """The last finished step; 0 before the first."""
        with self._lock:
            if self.steps.count:
                return int(self.steps.columns["step"][-1])
            return self.started.first_step - 1 if self.started is not None else 0

    @property
    def planned_steps(self) -> int:
        """The currently planned last step; 0 before the first start."""
        return planned.last_step if (planned := self.plan or self.started) else 0

    @property
    def num_bytes(self) -> int:
        """About how much memory the columns and marks take; asked without the lock."""
        points = self.steps.num_bytes + self.validations.num_bytes
        return points + _MARK_BYTES * len(self.marks)

    def tables(self) -> dict[str, Points]:
        """Return the rows of this moment, for a reader that takes its time."""
        with self._lock:
            return {"steps": self.steps.view(), "validations": self.validations.view()}

    def latest(self) -> dict[str, float]:
        """Return the newest value of every metric, searched in the last 50 rows."""
        with self._lock:
            # Steps come second, so that their newer value wins where both have a metric.
            return self.validations.newest(_SEARCHED) | self.steps.newest(_SEARCHED)

    def after(self, cursor: str, most: int = 2000, *, brief: Collection[str] = ()) -> Answer:
        """Return everything after a cursor as JSON values, thinned to `most` rows.

        Without a valid cursor that is the whole run, and `reset` is true. If rows are thinned, the
        metrics named in `brief` come with the newest rows only.
        """
        with self._lock:
            known = self._read_cursor(cursor)
            first = known or (0, 0, 0)
            return {
                "generation": self.generation,
                "reset": known is None,
                "cursor": self._cursor(),
                "steps": table_of(self.steps, first[0], self.steps.count, most, brief),
                "validations": table_of(self.validations, first[1], self.validations.count, most),
                "marks": [vars(mark) for mark in self.marks[first[2] :]],
                "server_time": time.time(),
            }

    def between(self, first_step: int, last_step: int, most: int = 2000) -> Answer:
        """Return the rows of a range of steps in full detail, thinned to `most` rows."""
        with self._lock:
            if not self.steps.count:
                return {"steps": table_of(self.steps, 0, 0, most)}
            steps = self.steps.array("step")
            low, high = np.searchsorted(steps, [first_step, last_step + 1])
            return {"steps": table_of(self.steps, int(low), int(high), most)}

    def _cursor(self) -> str:
        counts = (self.generation, self.steps.count, self.validations.count, len(self.marks))
        return ".".join(str(count) for count in counts)

    def _read_cursor(self, cursor: str) -> tuple[int, int, int] | None:
        parts = cursor.split(".")
        if len(parts) != 4 or not all(part.isdigit() for part in parts):
            return None
        # A cursor may outlive this store, for example in a page that stays open over a restart.
        generation, rows, validations, marks = (int(part) for part in parts)
        if generation != self.generation or rows > self.steps.count:
            return None
        return rows, validations, marks

    def _take_steps(self, lines: list[bytes]) -> None:
        newest = _read_steps(lines, self.steps) if lines else 0.0
        if newest:
            # A step proves that the phase before it (loading, aligning) is over.
            self.updated_at, self.phase = max(self.updated_at, newest), None

    def _take_event(self, event: Event, logged_at: float) -> None:
        match event:
            case StepDone():  # of another writer: the line does not begin as ours do
                self.steps.extend([event.step], [logged_at], [event.metrics])
                self.phase = None
            case ValidationDone():
                self.validations.extend([event.step], [logged_at], [event.metrics])
            case PhaseChanged():
                self.phase = event
            case RunStarted():
                self._start(event)
            case PlanChanged():
                self.plan = event
            case OptionsChanged():
                self.changes.append(event)
            case RunAdapted():
                self.adapted = event
            case RunFinished():
                self.finished, self.phase = event, None
        if type(event) in _MARKS:
            self._mark(event, logged_at)

    def _start(self, event: RunStarted) -> None:
        self.started, self.finished = event, None
        if self.steps.count or self.marks:
            # Rows may be cut now, which makes every cursor handed out so far invalid.
            self.generation += 1
            self.steps.cut(event.first_step)
            self.validations.cut(event.first_step)

    def _mark(self, event: Event, logged_at: float) -> None:
        step = getattr(event, "step", None) or 0
        if isinstance(event, RunStarted):
            step = event.first_step - 1
        elif isinstance(event, Notice):
            step = step or self.last_step
        self.marks.append(Mark(_MARKS[type(event)], step, logged_at, dict(vars(event))))


def _read_steps(lines: Sequence[bytes], points: Points) -> float:
    """Append the StepDone events of consecutive lines; return the newest of their times, or 0.

    All lines are parsed in one call, which takes two thirds of the time of one call per line.
    Where that fails, they are read one by one and the damaged ones are skipped.
    """
    try:
        values = json.loads(b"[%b]" % b",".join(lines))
        if len(values) == len(lines) and all(each["type"] == "StepDone" for each in values):
            steps, times = [each["step"] for each in values], [each["time"] for each in values]
            points.extend(steps, times, [each["metrics"] for each in values])
            return times[-1]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        pass
    newest = 0.0
    for line in lines:
        logged = parse_event(line, 0)
        if logged is not None and isinstance(logged.event, StepDone):
            points.extend([logged.event.step], [logged.time], [logged.event.metrics])
            newest = logged.time
    return newest

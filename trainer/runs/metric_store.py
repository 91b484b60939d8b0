"""The metrics of one run in memory, as columns read from its event log and served by cursor."""

import threading
import time
from array import array
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
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
)

_NAN = float("nan")
_NEWEST = 60
"""Newest rows that are never thinned and carry the `brief` metrics (chosen by hand)."""


@dataclass
class Mark:
    """An event on the time axis: a checkpoint, preview, notice, start or end."""

    kind: str
    step: int
    time: float
    values: dict[str, Any]


@dataclass
class Points:
    """Metric values at steps, as columns of equal length; absent values are NaN."""

    # 8 bytes a value, where a list of Python floats takes 32, and long runs have millions.
    columns: dict[str, array] = field(default_factory=dict)
    count: int = 0

    def add(self, values: dict[str, float | None]) -> None:
        """Append one row; a new metric gets NaN in all earlier rows."""
        for name in values:
            if name not in self.columns:
                self.columns[name] = array("d", [_NAN]) * self.count
        for name, column in self.columns.items():
            value = values.get(name)
            column.append(_NAN if value is None else value)
        self.count += 1

    def cut(self, first_step: int) -> None:
        """Drop the rows from `first_step` on, because a resumed run writes them again."""
        if not self.count:
            return
        keep = int(np.searchsorted(self.array("step"), first_step))  # steps only rise in a log
        for name in self.columns:
            self.columns[name] = self.columns[name][:keep]
        self.count = keep

    def array(self, name: str) -> np.ndarray:
        """Return a copy of one column, float64 (rows,)."""
        return np.array(self.columns[name], dtype=np.float64)


class MetricStore:
    """The columns, marks and latest facts of one run, shared by all pages; thread-safe."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.offset = 0
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

    def update(self) -> int:
        """Read the new events of the log and return their number."""
        with self._lock:
            count = 0
            for logged in self.log.follow(self.offset):
                self.offset = logged.offset
                self.updated_at = logged.time
                self._take(logged.event, logged.time)
                count += 1
            return count

    @property
    def last_step(self) -> int:
        """The last finished step; 0 before the first."""
        with self._lock:
            return int(self.steps.columns["step"][-1]) if self.steps.count else 0

    @property
    def planned_steps(self) -> int:
        """The currently planned last step; 0 before the first start."""
        if self.plan is not None:
            return self.plan.last_step
        return self.started.last_step if self.started is not None else 0

    def latest(self) -> dict[str, float]:
        """Return the newest value of every metric, searched in the last 50 rows."""
        with self._lock:
            values: dict[str, float] = {}
            # Steps come second, so that their newer value wins where both have a metric.
            for points in (self.validations, self.steps):
                for name, column in points.columns.items():
                    # Some metrics come every few seconds only, so their last row may be NaN.
                    known = [value for value in column[-50:] if value == value]
                    if known:
                        values[name] = known[-1]
            return values

    def after(
        self, cursor: str, most: int = 2000, *, brief: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return everything after a cursor as JSON values, thinned to `most` rows.

        An empty, stale or unreadable cursor returns the whole run with `reset` true. If rows are
        thinned, the metrics named in `brief` come with the newest rows only.
        """
        with self._lock:
            rows, validations, marks = self._read_cursor(cursor)
            reset = rows is None
            first = (rows or 0, validations or 0, marks or 0)
            return {
                "generation": self.generation,
                "reset": reset,
                "cursor": self._cursor(),
                "steps": _table(self.steps, first[0], self.steps.count, most, brief),
                "validations": _table(self.validations, first[1], self.validations.count, most),
                "marks": [asdict(mark) for mark in self.marks[first[2] :]],
                "server_time": time.time(),
            }

    def between(self, first_step: int, last_step: int, most: int = 2000) -> dict[str, Any]:
        """Return the rows of a range of steps in full detail, thinned to `most` rows."""
        with self._lock:
            if not self.steps.count:
                return {"steps": _table(self.steps, 0, 0, most)}
            steps = self.steps.array("step")
            low, high = np.searchsorted(steps, [first_step, last_step + 1])
            return {"steps": _table(self.steps, int(low), int(high), most)}

    def _cursor(self) -> str:
        counts = (self.generation, self.steps.count, self.validations.count, len(self.marks))
        return ".".join(str(count) for count in counts)

    def _read_cursor(self, cursor: str) -> tuple[int | None, int | None, int | None]:
        parts = cursor.split(".")
        if len(parts) != 4 or not all(part.isdigit() for part in parts):
            return None, None, None
        # A cursor may outlive this store, for example in a page that stays open over a restart.
        generation, rows, validations, marks = (int(part) for part in parts)
        if generation != self.generation or rows > self.steps.count:
            return None, None, None
        return rows, validations, marks

    def _take(self, event: Event, logged_at: float) -> None:
        match event:
            # A step proves that the phase before it (loading, aligning) is over.
            case StepDone():
                self.steps.add({"step": event.step, "time": logged_at, **event.metrics})
                self.phase = None
            case ValidationDone():
                self.validations.add({"step": event.step, "time": logged_at, **event.metrics})
            case PhaseChanged():
                self.phase = event
            case RunStarted():
                self._start(event, logged_at)
            case PlanChanged():
                self.plan = event
                self._mark("plan", event.step, logged_at, event)
            case OptionsChanged():
                self.changes.append(event)
            case RunAdapted():
                self.adapted = event
            case RunFinished():
                self.finished, self.phase = event, None
                self._mark("finished", event.step, logged_at, event)
            case CheckpointSaved():
                self._mark("checkpoint", event.step, logged_at, event)
            case PreviewMade():
                self._mark("preview", event.step, logged_at, event)
            case Notice():
                self._mark("notice", event.step or self.last_step, logged_at, event)

    def _start(self, event: RunStarted, logged_at: float) -> None:
        self.started, self.finished = event, None
        if self.steps.count or self.marks:
            # Rows may be cut now, which makes every cursor handed out so far invalid.
            self.generation += 1
            self.steps.cut(event.first_step)
            self.validations.cut(event.first_step)
        self._mark("started", event.first_step - 1, logged_at, event)

    def _mark(self, kind: str, step: int, logged_at: float, event: Event) -> None:
        self.marks.append(Mark(kind, step, logged_at, asdict(event)))


def thin(values: list[np.ndarray], most: int) -> np.ndarray:
    """Choose about `most` rows that keep every column's extremes and its rare NaN rows.

    Args:
        values: columns of equal length, float64 (rows,).

    Returns:
        Sorted row indices, int64; the first and the last row are among them.
    """
    count = len(values[0])
    if count <= most:
        return np.arange(count)
    # Each bucket keeps the minimum and the maximum of every column, so spikes stay visible.
    # Two rows per column and bucket, so all columns together stay near `most`.
    num_buckets = max(1, most // (2 * len(values)))
    edges = np.linspace(0, count, num_buckets + 1).astype(np.int64)
    keep = [np.array([0, count - 1])]
    for column in values:
        missing = np.isnan(column)
        # Keep single NaN losses. A column that is mostly empty, such as a metric that is logged
        # every few seconds, would keep nearly all rows; 1 % is chosen by hand.
        if missing.any() and missing.mean() < 0.01:
            keep.append(np.flatnonzero(missing))
        for fill, choose in ((np.inf, np.argmin), (-np.inf, np.argmax)):
            filled = np.where(missing, fill, column)
            keep.append(
                np.array(
                    [
                        low + choose(filled[low:high])
                        for low, high in zip(edges, edges[1:], strict=False)
                    ]
                )
            )
    return np.unique(np.concatenate(keep))


def merged_rows(
    steps: dict[str, array], validations: dict[str, array]
) -> list[dict[str, float | int]]:
    """Join step and validation columns into one row per step, without absent values."""
    rows: dict[int, dict[str, float | int]] = {}
    for columns in (steps, validations):
        for index, step in enumerate(columns.get("step", [])):
            row = rows.setdefault(int(step), {"step": int(step)})
            for name, column in columns.items():
                value = column[index]
                if name != "step" and value == value:
                    # Steps come first, so where both have a metric, the step's own value stays.
                    row.setdefault(name, value)
    return [rows[step] for step in sorted(rows)]


def _table(
    points: Points, first: int, last: int, most: int, brief: Collection[str] = ()
) -> dict[str, Any]:
    """Return rows `first` to `last` as {columns, rows}, with 6 significant digits.

    Thinned rows have 5 digits, more than a chart can show. `brief` columns come last, so that all
    rows but the newest simply end before them.
    """
    is_thinned = last - first > most
    late = [name for name in points.columns if is_thinned and name in brief]
    names = [name for name in points.columns if name not in late]
    if first >= last:
        return {"columns": names, "rows": []}
    # Slice before copying: a poll usually wants a few rows out of a hundred thousand.
    columns = {
        name: np.array(points.columns[name][first:last], dtype=np.float64)
        for name in [*names, *late]
    }
    drawn = [columns[name] for name in names if name not in ("step", "time")]
    rows = thin(drawn or list(columns.values()), most)
    if late:
        # Without gaps at the end, because the page shows the latest values of the brief metrics.
        rows = np.union1d(rows, np.arange(last - first - _NEWEST, last - first))
    digits = 5 if is_thinned else 6
    table = []
    for row in rows:
        told = [*names, *late] if row >= last - first - _NEWEST else names
        table.append([_short(float(columns[name][row]), digits) for name in told])
    return {"columns": [*names, *late], "rows": table}


def _short(value: float, digits: int = 6) -> float | int | None:
    if value != value or value in (np.inf, -np.inf):
        return None
    # Shorter as JSON: 5 and not 5.0. Above 2**53 (9e15) floats skip integers; 1e15 stays clear of
    # that.
    if float(value).is_integer() and abs(value) < 1e15:
        return int(value)  # the type that a step count has in JSON
    # Times in seconds since 1970 are above 1e6; significant digits would round them too far.
    return float(f"{value:.{digits}g}") if abs(value) < 1e6 else round(float(value), digits - 3)

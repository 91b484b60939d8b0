"""Metric values as columns: filled from lines of a log, thinned for a chart, written as a file."""

import csv
import heapq
import json
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any

import numpy as np

NAN = float("nan")
_NEWEST = 60
"""Newest rows that are never thinned and carry the `brief` metrics (chosen by hand)."""
_WRITTEN = 4096
"""Values per write: some 80 kB of text, so that a file never stands in memory as a whole."""

Metrics = Mapping[str, float | None]
_Row = list[float | str]


@dataclass
class Points:
    """Metric values at steps, as columns of equal length; absent values are NaN."""

    # 8 bytes a value, where a list of Python floats takes 32, and long runs have millions.
    columns: dict[str, array] = field(default_factory=dict)
    count: int = 0

    @property
    def num_bytes(self) -> int:
        """The memory of all columns."""
        return sum(column.itemsize * len(column) for column in list(self.columns.values()))

    def extend(self, steps: Sequence[int], times: Sequence[float], rows: Sequence[Metrics]) -> None:
        """Append one row per step; a metric that a row lacks is NaN there.

        Raises:
            TypeError, OverflowError: a value is not a number; no row was added.
        """
        # "q" refuses a step that is not a whole number.
        added = {"step": array("d", array("q", steps)), "time": array("d", times)}
        for name in dict.fromkeys(chain.from_iterable(rows)):
            if name not in added:
                added[name] = _column([row.get(name, NAN) for row in rows])
        for name in added:
            if name not in self.columns:
                self.columns[name] = array("d", [NAN]) * self.count
        absent = array("d", [NAN]) * len(steps)
        for name, column in self.columns.items():
            column.extend(added.get(name, absent))
        self.count += len(steps)

    def view(self) -> "Points":
        """Return the rows of this moment, without a copy, for a reader in another thread."""
        # Columns only grow at their ends; `cut` puts new ones in their place.
        return Points(dict(self.columns), self.count)

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

    def finite(self, name: str, rows: int = 0) -> np.ndarray:
        """Return the finite values of a metric in the last `rows` rows or, with 0, in all.

        float64 (values,); none if it was never logged.
        """
        values = np.array(self.columns.get(name, ())[-rows:], dtype=np.float64)
        return values[np.isfinite(values)]

    def newest(self, rows: int) -> dict[str, float]:
        """Return the newest value of every metric, searched in so many of the last rows."""
        # Some metrics come every few seconds only, so their last row may be NaN.
        found = {}
        for name, column in self.columns.items():
            known = [value for value in column[-rows:] if value == value]
            if known:
                found[name] = known[-1]
        return found


def _column(values: Sequence[float | None]) -> array:
    try:
        return array("d", values)  # type: ignore[arg-type]
    except TypeError:  # the log writes NaN as null
        return array("d", [NAN if value is None else value for value in values])


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
            spans = zip(edges, edges[1:], strict=False)
            keep.append(np.array([low + choose(filled[low:high]) for low, high in spans]))
    return np.unique(np.concatenate(keep))


def table_of(
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


def json_texts(tables: Mapping[str, Points], head: str = "") -> Iterator[str]:
    """Yield {table: {metric: [values]}} as JSON, piece by piece; absent values are null.

    `head` is the text of further members, such as `"run": "voice", `.
    """
    yield "{" + head
    for number, (table, points) in enumerate(tables.items()):
        yield f"{', ' if number else ''}{json.dumps(table)}: {{"
        for index, (name, column) in enumerate(points.columns.items()):
            yield f"{', ' if index else ''}{json.dumps(name)}: ["
            for first in range(0, points.count, _WRITTEN):
                part = column[first : min(first + _WRITTEN, points.count)]
                values = part if np.isfinite(part).all() else [_or_none(value) for value in part]
                yield (", " if first else "") + json.dumps(list(values))[1:-1]
            yield "]"
        yield "}"
    yield "}"


def _or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None  # JSON has no NaN and no infinity


class _Parts(list[str]):
    """A file for `csv.writer`: it keeps what is written until it is taken."""

    def write(self, text: str) -> int:
        self.append(text)
        return len(text)

    def take(self) -> str:
        """Return the text written since the last call."""
        text = "".join(self)
        self.clear()
        return text


def csv_texts(steps: Points, validations: Points, title: Callable[[str], object]) -> Iterator[str]:
    """Yield one row per step as CSV, piece by piece; `title` turns a metric into a column title."""
    # Steps first, as only some rows have a validation.
    names = list(dict.fromkeys([*steps.columns, *validations.columns]))
    parts = _Parts()
    writer = csv.writer(parts, lineterminator="\n")
    writer.writerow([title(name) for name in names])
    rows = _merged(steps, validations, names)
    while batch := list(islice(rows, _WRITTEN)):
        writer.writerows(batch)
        yield parts.take()
    yield parts.take()  # the column titles of a run without a step


def _merged(steps: Points, validations: Points, names: Sequence[str]) -> Iterator[_Row]:
    """Yield the rows of both tables by step; where both have a metric, the step's own counts."""
    by_step = itemgetter(0)
    rows = heapq.merge(_rows(steps, names), _rows(validations, names), key=by_step)
    for _, (row, *others) in groupby(rows, by_step):
        for other in others:
            row = [b if a == "" else a for a, b in zip(row, other, strict=True)]
        yield row


def _rows(points: Points, names: Sequence[str]) -> Iterator[_Row]:
    """Yield the rows of the named columns, of which `step` is the first; absent values are ''."""
    if not points.count:
        return
    empty = array("d", [NAN]) * points.count
    columns = [points.columns.get(name, empty) for name in names[1:]]
    rows = zip(map(int, points.columns["step"]), *columns, strict=False)
    for row in islice(rows, points.count):
        yield ["" if value != value else value for value in row]

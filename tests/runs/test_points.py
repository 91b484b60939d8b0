"""Columns: filled row by row or in batches, written as a file without a copy in memory."""

import csv
import io
import json
import tracemalloc
from collections.abc import Iterable

import pytest

from trainer.runs.points import Points, csv_texts, json_texts

NAN = float("nan")


def _points(*rows: tuple[int, dict[str, float | None]]) -> Points:
    points = Points()
    for step, metrics in rows:
        points.extend([step], [10.0 + step], [metrics])
    return points


def _size_of(texts: Iterable[str]) -> int:
    return sum(len(text) for text in texts)


def test_rows_with_other_metrics_make_one_table() -> None:
    points = Points()
    points.extend([1, 2], [5.0, 6.0], [{"a": 1.0}, {"a": None, "b": 2}])
    points.extend([3], [7.0], [{"b": 3.0}])

    columns = {name: list(map(repr, column)) for name, column in points.columns.items()}

    assert columns["step"] == ["1.0", "2.0", "3.0"]
    assert columns["a"] == ["1.0", "nan", "nan"]
    assert columns["b"] == ["nan", "2.0", "3.0"]


@pytest.mark.parametrize(
    ("steps", "rows"),
    [
        ([1.5], [{}]),
        ([1], [{"a": "x"}]),
        ([1], [{"a": 10**400}]),
        ([2**70], [{}]),
        ([1], [{"a": []}]),
    ],
)
def test_values_that_are_not_numbers_add_no_row(steps: list, rows: list) -> None:
    points = _points((0, {"a": 1.0}))

    with pytest.raises((TypeError, OverflowError)):
        points.extend(steps, [1.0], rows)

    assert points.count == 1
    assert {len(column) for column in points.columns.values()} == {1}


def test_a_metric_cannot_take_the_place_of_the_step() -> None:
    points = _points((7, {"step": 99.0, "a": 1.0}))

    assert list(points.columns["step"]) == [7.0]


def test_json_has_null_for_what_is_not_a_number() -> None:
    tables = {"steps": _points((1, {"a": NAN}), (2, {"a": 0.1})), "validations": Points()}

    values = json.loads("".join(json_texts(tables, '"run": "x", ')))

    columns = {"step": [1.0, 2.0], "time": [11.0, 12.0], "a": [None, 0.1]}
    assert values == {"run": "x", "steps": columns, "validations": {}}


def test_csv_has_one_row_per_step_of_both_tables() -> None:
    steps = _points((1, {"a": 5.0}), (3, {"a": NAN}))
    validations = _points((2, {"b": 7.0}), (3, {"b": 8.0, "a": 9.0}))

    rows = list(csv.reader(io.StringIO("".join(csv_texts(steps, validations, str.upper)))))

    assert rows == [
        ["STEP", "TIME", "A", "B"],
        ["1", "11.0", "5.0", ""],
        ["2", "12.0", "", "7.0"],
        ["3", "13.0", "9.0", "8.0"],
    ]


def test_a_run_without_a_step_has_a_file_too() -> None:
    assert json.loads("".join(json_texts({"steps": Points()}))) == {"steps": {}}
    assert "".join(csv_texts(Points(), Points(), str)) == "\n"


@pytest.mark.parametrize("form", ["json", "csv"])
def test_writing_a_long_run_takes_little_memory(form: str) -> None:
    points, steps = Points(), range(1, 50_001)
    points.extend(steps, [1.0] * len(steps), [{"a": 1 / step, "b": NAN} for step in steps])
    texts = json_texts({"steps": points}) if form == "json" else csv_texts(points, Points(), str)

    tracemalloc.start()
    size = _size_of(texts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert size > 1_000_000
    assert peak < points.num_bytes + 1_500_000  # one batch of rows, and copies of a column or two

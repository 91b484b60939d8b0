"""Series: columns by cursor, rewinds after a resume, thinning that keeps every spike."""

import json
import math
from array import array
from pathlib import Path

import numpy as np
import pytest

from trainer.core.events import (
    CheckpointSaved,
    EventLog,
    Notice,
    RunStarted,
    StepDone,
    ValidationDone,
)
from trainer.runs.metric_store import MetricStore
from trainer.runs.points import thin


def _log(tmp_path: Path, *events: object) -> EventLog:
    log = EventLog(tmp_path / "events.jsonl")
    for event in events:
        log.append(event)  # type: ignore[arg-type]
    return log


def _steps(first: int, last: int) -> list[StepDone]:
    return [StepDone(step, {"train/loss": 1.0 / step}) for step in range(first, last + 1)]


def test_an_empty_cursor_returns_the_whole_run(tmp_path: Path) -> None:
    series = MetricStore(_log(tmp_path, RunStarted(1, 9, 3), *_steps(1, 5)))
    series.update()

    answer = series.after("")

    assert answer["reset"] is True
    assert [row[0] for row in answer["steps"]["rows"]] == [1, 2, 3, 4, 5]


def test_a_cursor_returns_only_what_is_new(tmp_path: Path) -> None:
    log = _log(tmp_path, RunStarted(1, 9, 3), *_steps(1, 5))
    series = MetricStore(log)
    series.update()
    cursor = series.after("")["cursor"]

    log.append(StepDone(6, {"train/loss": 0.1}))
    log.append(ValidationDone(6, {"val/loss": 0.2}))
    log.append(CheckpointSaved(6, "checkpoints/step-6", True, 10, 0.1))
    series.update()
    answer = series.after(cursor)

    assert answer["reset"] is False
    assert [row[0] for row in answer["steps"]["rows"]] == [6]
    assert [row[0] for row in answer["validations"]["rows"]] == [6]
    assert [mark["kind"] for mark in answer["marks"]] == ["checkpoint"]


@pytest.mark.fault("F3")
def test_a_resume_from_an_earlier_step_voids_the_rows_after_it(tmp_path: Path) -> None:
    log = _log(tmp_path, RunStarted(1, 9, 3), *_steps(1, 5))
    series = MetricStore(log)
    series.update()
    cursor = series.after("")["cursor"]

    log.append(RunStarted(4, 9, 3))
    log.append(StepDone(4, {"train/loss": 0.5}))
    series.update()
    answer = series.after(cursor)

    assert answer["reset"] is True
    assert [row[0] for row in answer["steps"]["rows"]] == [1, 2, 3, 4]
    assert answer["steps"]["rows"][-1][2] == 0.5


def test_unreadable_cursors_start_afresh(tmp_path: Path) -> None:
    series = MetricStore(_log(tmp_path, *_steps(1, 2)))
    series.update()

    answers = [series.after(cursor) for cursor in ("x", "0.9.0.0", "1.2.3", "-1.0.0.0")]

    assert all(answer["reset"] for answer in answers)


def test_a_metric_that_appears_late_is_absent_before(tmp_path: Path) -> None:
    late = StepDone(2, {"train/loss": 1.0, "train/extra": 3.0})
    series = MetricStore(_log(tmp_path, StepDone(1, {"train/loss": 2.0}), late))
    series.update()

    table = series.after("")["steps"]

    assert [row[table["columns"].index("train/extra")] for row in table["rows"]] == [None, 3]


def test_not_a_number_travels_as_null(tmp_path: Path) -> None:
    series = MetricStore(_log(tmp_path, StepDone(1, {"train/loss": math.nan})))
    series.update()

    table = series.after("")["steps"]

    assert table["rows"][0][table["columns"].index("train/loss")] is None


def test_thinning_keeps_first_last_and_every_spike() -> None:
    values = np.zeros(100_000)
    values[54_321] = 9.0
    values[777] = -9.0

    rows = thin([values], 2_000)

    assert {0, 777, 54_321, 99_999} <= set(rows.tolist())
    assert len(rows) <= 2_002


def test_thinning_keeps_rows_that_are_not_numbers() -> None:
    values = np.ones(10_000)
    values[5_000] = np.nan

    rows = thin([values], 100)

    assert 5_000 in rows


def test_a_range_of_steps_comes_in_full_detail(tmp_path: Path) -> None:
    series = MetricStore(_log(tmp_path, *_steps(1, 500)))
    series.update()

    table = series.between(100, 110)["steps"]

    assert [row[0] for row in table["rows"]] == list(range(100, 111))


@pytest.mark.fault("F2")
def test_a_hundred_thousand_points_answer_small_and_a_poll_smaller(tmp_path: Path) -> None:
    series = MetricStore(EventLog(tmp_path / "none.jsonl"))
    steps = range(1, 100_001)
    rows = [{"train/loss": math.sin(step), "train/lr": 1e-3} for step in steps]
    series.steps.extend(steps, steps, rows)
    answer = series.after("")

    series.steps.extend([100_001], [1.0], [{"train/loss": 0.5, "train/lr": 1e-3}])
    poll = series.after(answer["cursor"])

    assert len(answer["steps"]["rows"]) <= 2_010
    assert len(poll["steps"]["rows"]) == 1


def test_notices_stand_at_the_step_they_concern(tmp_path: Path) -> None:
    series = MetricStore(
        _log(tmp_path, *_steps(1, 3), Notice("warning", "slow"), Notice("info", "x", "", 2))
    )
    series.update()

    assert [mark.step for mark in series.marks] == [3, 2]


@pytest.mark.fault("F2")
def test_the_first_answer_of_a_long_run_of_many_metrics_is_small_and_keeps_every_spike() -> None:
    series, random = MetricStore(EventLog(Path("none.jsonl"))), np.random.default_rng(0)
    names = [*(f"train/{number}" for number in range(9)), *(f"perf/{n}" for n in range(9))]
    columns = {name: random.random(100_000) for name in names}
    columns["train/3"][54_321] = 9.0
    columns |= {"step": np.arange(1, 100_001), "time": 1.7e9 + random.random(100_000)}
    series.steps.columns = {name: array("d", columns[name]) for name in ("step", "time", *names)}
    series.steps.count = 100_000

    table = series.after("", 1_000, brief={f"perf/{number}" for number in range(9)})["steps"]

    rows, spike = table["rows"], table["columns"].index("train/3")
    assert len(json.dumps(table, separators=(",", ":"))) < 115_000
    assert [row[0] for row in rows if row[spike] == 9] == [54_322]
    assert {len(row) for row in rows[:-60]} == {11}
    assert [row[0] for row in rows[-60:]] == list(range(99_941, 100_001))
    assert rows[-1][-1] == pytest.approx(columns["perf/8"][-1], rel=1e-4)

"""The run table: what nobody trains and what did not change is not read again."""

import json
from pathlib import Path

import pytest

from trainer import Run, RunConfig
from trainer.core.events import (
    EventLog,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)
from trainer.runs.run_store import RunStore
from webui.run_list import RunList

LINE = (
    '{"time": 1.0, "type": "StepDone", "step": %d, '
    '"metrics": {"train/loss": 1.0, "perf/s_per_step": 0.5, "perf/memory_gib": 2.0}}\n'
)


def _run(folder: Path, steps: int) -> Run:
    run = Run.create(folder, RunConfig())
    run.events.append(RunStarted(1, steps, 5))
    with run.events.path.open("a", encoding="utf-8") as file:
        file.writelines(LINE % step for step in range(1, steps + 1))
    run.events.append(ValidationDone(steps, {"val/loss": 0.25}))
    run.events.append(RunFinished("finished", steps))
    return run


@pytest.fixture
def library(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the runs whose log was opened, in order."""
    found: list[str] = []
    read = EventLog.open

    def note(log: EventLog) -> object:
        found.append(log.path.parent.name)
        return read(log)

    monkeypatch.setattr(EventLog, "open", note)
    return found


def test_a_poll_opens_no_log_of_a_run_that_nobody_trains(
    library: RunStore, opened: list[str]
) -> None:
    _run(library.folder / "a", 5)
    _run(library.folder / "b", 5)

    assert RunList(library).active() == []
    assert opened == []


def test_a_poll_opens_the_log_of_a_run_that_trains(library: RunStore, opened: list[str]) -> None:
    _run(library.folder / "idle", 5)
    run = Run.create(library.folder / "busy", RunConfig())
    table = RunList(library)
    before = table.active()

    lock = run.take()
    run.events.append(RunStarted(1, 9, 3))
    run.events.append(StepDone(1, {}))
    during = table.active()
    lock.release()

    assert before == []
    assert [row["name"] for row in during] == ["busy"]
    assert set(opened) == {"busy"}


def test_a_row_is_read_again_only_after_a_change(library: RunStore, opened: list[str]) -> None:
    run = _run(library.folder / "a", 5)
    table = RunList(library)

    first = table.rows()
    num_opened = len(opened)
    assert table.rows() == first
    assert len(opened) == num_opened
    run.events.append(RunStarted(6, 9, 3))

    assert first[0]["state"] == "finished"
    assert table.rows()[0]["state"] == "interrupted"


def test_figures_of_long_runs_survive_a_restart(
    library: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _run(library.folder / "long", 3000)
    row = RunList(library).rows()[0]

    monkeypatch.setattr(Run, "series", None)  # a whole log is read nowhere else
    again = RunList(RunStore(library.folder)).rows()[0]

    assert again == row
    assert (row["best_eval"], row["median_s_per_step"], row["peak_memory_gib"]) == (0.25, 0.5, 2.0)


@pytest.mark.parametrize("text", ["", "[]", "[" * 100_000, '{"long": [[1, 2], {}]}', '{"long": 5}'])
def test_damaged_figures_are_read_from_the_log_again(library: RunStore, text: str) -> None:
    _run(library.folder / "long", 3000)
    row = RunList(library).rows()[0]
    path = library.folder / ".page" / "figures.json"
    path.write_text(text, encoding="utf-8")

    again = RunList(RunStore(library.folder)).rows()[0]

    assert again == row
    assert list(json.loads(path.read_text(encoding="utf-8"))) == ["long"]

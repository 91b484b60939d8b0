"""The index of a log: a status reads the end of the log, and loses nothing for it."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from trainer import Run, RunConfig
from trainer.core.events import (
    Event,
    EventLog,
    OptionsChanged,
    PhaseChanged,
    PlanChanged,
    RunAdapted,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)
from trainer.runs import log_index
from trainer.runs.log_index import LogIndex, index_path, read_newest, refresh_index
from trainer.runs.metric_store import MetricStore

_STARTED = RunStarted(1, 9000, 100, {"device": "none"}, {"sdpa": {"on": True, "detail": ""}})


def _steps(first: int, last: int) -> list[StepDone]:
    return [StepDone(step, {"train/loss": 1 / step}) for step in range(first, last + 1)]


def _write(log: EventLog, *events: Event) -> None:
    """Write many events at once, each as the log itself writes it."""
    one = EventLog(log.path.with_name("one.jsonl"))
    lines = []
    for event in events:
        one.path.unlink(missing_ok=True)
        one.append(event)
        lines.append(one.path.read_bytes())
    with log.path.open("ab") as file:
        file.write(b"".join(lines))
    one.path.unlink(missing_ok=True)


def _facts(store: MetricStore) -> dict[str, Any]:
    names = ("started", "finished", "phase", "plan", "adapted", "changes", "updated_at", "offset")
    facts = {name: getattr(store, name) for name in names}
    return facts | {"step": store.last_step, "latest": store.latest()}


def _all_of(log: EventLog) -> MetricStore:
    store = MetricStore(log)
    store.update()
    return store


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    """A log with everything that a status shows, far before its last steps."""
    log = EventLog(tmp_path / "events.jsonl")
    changes = (OptionsChanged(0, {"seed": 1}), RunAdapted(5, "no memory", 2), PlanChanged(9, 8000))
    _write(log, PhaseChanged("Loading"), _STARTED, *_steps(1, 10), *changes)
    _write(log, ValidationDone(10, {"val/loss": 0.5, "val/rare": 1.0}), *_steps(11, 3300))
    return log


@pytest.mark.parametrize(
    "later",
    [
        [],
        [RunFinished("stopped", 3300, "asked")],
        [PhaseChanged("Saving")],
        [RunStarted(3001, 9000, 100)],
        [RunStarted(3001, 9000, 100), *_steps(3001, 3010)],
        [RunStarted(2, 9000, 100)],
        [RunStarted(5, 9000, 100), *_steps(5, 8)],
        [OptionsChanged(3300, {"seed": 2}), RunStarted(3301, 9000, 100), *_steps(3301, 4500)],
    ],
)
def test_the_newest_facts_are_those_of_the_whole_log(log: EventLog, later: list[Event]) -> None:
    _write(log, *later)

    refreshed, whole = read_newest(log), _all_of(log)
    refresh_index(log)

    assert _facts(refreshed) == _facts(whole)
    assert _facts(read_newest(log)) == _facts(whole)


def test_a_status_of_a_known_log_reads_its_end_only(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh_index(log)
    parsed: list[int] = []
    read = MetricStore.read

    def count(store: MetricStore, blocks: Any, until: float = 1e9) -> None:
        whole = list(blocks)
        parsed.append(sum(len(block) for _, block in whole))
        read(store, whole, until)

    monkeypatch.setattr(MetricStore, "read", count)
    store = read_newest(log)

    assert store.last_step == 3300
    assert parsed[0] < log.size / 2


def test_an_index_that_is_older_than_the_log_is_carried_on(log: EventLog) -> None:
    refresh_index(log)
    before = json.loads(index_path(log).read_text(encoding="utf-8"))["end"]

    _write(log, PlanChanged(3300, 5000), *_steps(3301, 3400))

    assert _facts(read_newest(log)) == _facts(_all_of(log))
    assert before < log.size


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "[" * 100_000, '{"end": "x"}', '{"end": 1e999}', "null", '{"end": 5}'],
)
def test_a_damaged_index_is_built_again(log: EventLog, text: str) -> None:
    index_path(log).write_text(text, encoding="utf-8")

    assert _facts(read_newest(log)) == _facts(_all_of(log))
    refresh_index(log)
    assert json.loads(index_path(log).read_text(encoding="utf-8"))["end"] == log.size


@pytest.mark.parametrize("name", ["lines", "marks"])
def test_an_index_that_points_outside_the_log_is_built_again(log: EventLog, name: str) -> None:
    refresh_index(log)
    values = json.loads(index_path(log).read_text(encoding="utf-8"))
    values |= {"lines": {"RunStarted": [-7]}} if name == "lines" else {"marks": [[1, 10**12]]}
    index_path(log).write_text(json.dumps(values), encoding="utf-8")

    assert _facts(read_newest(log)) == _facts(_all_of(log))


def test_an_index_of_another_log_does_not_count(log: EventLog) -> None:
    refresh_index(log)
    log.path.unlink()
    _write(log, RunStarted(1, 7, 7), *_steps(1, 4000))

    assert _facts(read_newest(log)) == _facts(_all_of(log))


def test_a_log_cut_by_a_power_loss_is_searched_again(log: EventLog) -> None:
    refresh_index(log)
    log.path.write_bytes(log.path.read_bytes()[:-50_020])

    assert _facts(read_newest(log)) == _facts(_all_of(log))


def test_a_torn_last_line_waits_for_its_end(log: EventLog) -> None:
    whole = log.path.read_bytes()
    log.path.write_bytes(whole[:-10])
    refresh_index(log)
    torn = read_newest(log).last_step

    log.path.write_bytes(whole)

    assert (torn, read_newest(log).last_step) == (3299, 3300)


def test_a_run_that_goes_back_by_far_is_read_from_its_new_start(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_index, "_MOST_READ", 100_000)
    _write(log, RunStarted(51, 9000, 100))
    at_its_start = read_newest(log)

    _write(log, *_steps(51, 60))
    store = read_newest(log)

    assert (at_its_start.last_step, at_its_start.steps.count) == (50, 0)
    assert (store.last_step, store.steps.count) == (60, 10)


def test_a_step_is_found_by_its_offset(log: EventLog) -> None:
    index = LogIndex()
    with log.open() as file:
        index.update(file)

    store = MetricStore(log)
    store.read(log.blocks(index.begin_of(2500)))

    assert store.steps.columns["step"][0] <= 2500 < store.last_step
    assert store.steps.count < 1500


def test_a_folder_that_cannot_be_written_has_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    _write(run.events, _STARTED, *_steps(1, 20))
    monkeypatch.setattr(log_index, "_SAVED_EVERY", 1)
    refused = Mock(side_effect=PermissionError)  # root may write anywhere, so no chmod
    monkeypatch.setattr(log_index, "write_atomic", refused)

    assert run.status().step == 20
    assert refused.called


def test_a_reader_stores_the_index_of_a_long_log(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_index, "_SAVED_EVERY", 1000)

    read_newest(log)

    assert json.loads(index_path(log).read_text(encoding="utf-8"))["end"] == log.size

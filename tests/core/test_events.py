"""The event log: what is appended comes back, whatever happened to the file in between."""

import json
import math
import os
from pathlib import Path

import pytest

from trainer.core.events import (
    EVENT_TYPES,
    CheckpointSaved,
    Event,
    EventLog,
    Notice,
    OptionsChanged,
    PhaseChanged,
    PlanChanged,
    PreviewMade,
    Publisher,
    ResumeVerified,
    RunAdapted,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)

ONE_OF_EACH: list[Event] = [
    RunStarted(1, 100, 10, {"device": "cpu"}, {"sdpa": {"on": True, "detail": "flash"}}),
    PhaseChanged("Computing features", 3, 9),
    StepDone(1, {"train/loss": 0.5}),
    ValidationDone(10, {"val/loss": 0.25}),
    PlanChanged(9, 400),
    OptionsChanged(9, {"training": {"batch_size": 4}}),
    RunAdapted(9, "memory ran out", parts=2),
    ResumeVerified(9, 3, 0.0),
    PreviewMade(10, "previews/step-00000010.wav", "H\u00e9llo, \uc548\ub155", "ann"),
    CheckpointSaved(10, "checkpoints/step-00000010", True, 1234, 0.5),
    Notice("warning", "No preview was made", "Choose another sentence", 10),
    RunFinished("failed", 10, "out of memory", "lower the batch size"),
]


def _events(log: EventLog, offset: int = 0) -> list[Event]:
    return [logged.event for logged in log.follow(offset)]


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    return EventLog(tmp_path / "events.jsonl")


def test_every_kind_of_event_comes_back_equal_and_in_order(log: EventLog) -> None:
    for event in ONE_OF_EACH:
        log.append(event)

    assert {type(event).__name__ for event in ONE_OF_EACH} == set(EVENT_TYPES)
    assert _events(log) == ONE_OF_EACH


def test_each_event_is_one_line_of_json_with_its_time_and_type(log: EventLog) -> None:
    log.append(Notice("info", "two\nlines"))

    (line,) = log.path.read_text(encoding="utf-8").splitlines()

    values = json.loads(line)
    assert values["type"] == "Notice"
    assert values["text"] == "two\nlines"
    assert values["time"] > 1.6e9


def test_numbers_that_json_lacks_become_none(log: EventLog) -> None:
    log.append(StepDone(1, {"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.0}))

    text = log.path.read_text(encoding="utf-8")

    assert _events(log) == [StepDone(1, {"a": None, "b": None, "c": None, "d": 1.0})]  # type: ignore[dict-item]
    assert "NaN" not in text
    assert "Infinity" not in text


def test_a_follower_goes_on_where_it_stopped(log: EventLog) -> None:
    log.append(StepDone(1, {}))
    log.append(StepDone(2, {}))
    offsets = [logged.offset for logged in log.follow()]

    log.append(StepDone(3, {}))

    assert _events(log, offsets[0]) == [StepDone(2, {}), StepDone(3, {})]
    assert _events(log, offsets[1]) == [StepDone(3, {})]
    assert [logged.offset for logged in log.follow(offsets[1])] == [log.path.stat().st_size]


def test_a_log_that_does_not_exist_yet_is_empty(log: EventLog) -> None:
    assert _events(log) == []


def test_a_line_still_being_written_waits_for_its_end(log: EventLog) -> None:
    log.append(StepDone(1, {}))
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + whole[:10])

    seen = list(log.follow())
    log.path.write_bytes(whole + whole)

    assert [logged.event for logged in seen] == [StepDone(1, {})]
    assert _events(log, seen[-1].offset) == [StepDone(1, {})]


@pytest.mark.fault("F3")
def test_a_line_torn_by_a_crash_is_passed_over_and_spoils_no_other(log: EventLog) -> None:
    log.append(StepDone(1, {}))
    with log.path.open("ab") as file:
        file.write(b'{"time": 1.0, "type": "StepD')

    next_process = EventLog(log.path)
    next_process.append(StepDone(2, {}))
    next_process.append(StepDone(3, {}))

    assert _events(log) == [StepDone(1, {}), StepDone(2, {}), StepDone(3, {})]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"nonsense",
        b"\xff\xfe\x00",
        b'{"type": "StepDone", "step": 1, "metrics": {}}',
        b'{"time": "now", "type": "StepDone", "step": 1, "metrics": {}}',
        b'{"time": 1.0, "type": "FromTheFuture"}',
        b'{"time": 1.0, "type": ["StepDone"]}',
        b'{"time": 1.0, "type": "StepDone", "unheard": 1}',
        b'{"time": 1.0, "type": "StepDone", "step": "1", "metrics": {}}',
        b'{"time": 1.0, "type": "StepDone", "step": 1.5, "metrics": {}}',
        b'{"time": 1.0, "type": "StepDone", "step": 1, "metrics": [1]}',
        b'{"time": 1.0, "type": "StepDone", "step": 1, "metrics": {"a": "x"}}',
        b'{"time": 1.0, "type": "StepDone", "step": 1, "metrics": {"a": 1' + b"0" * 400 + b"}}",
        b'{"time": 1.0, "type": "RunStarted", "first_step": 1, "last_step": 9, '
        b'"steps_per_epoch": 1, "optimizations": {"sdpa": true}}',
        b'{"time": 1.0, "type": "RunAdapted", "step": 1, "reason": "", "parts": 1000000000}',
        b'{"time": 1.0, "type": "RunAdapted", "step": 1, "reason": "", "rate": null}',
        b'{"time": 1.0, "type": "Notice", "level": "info", "text": ["x"]}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_event_is_passed_over(line: bytes, log: EventLog) -> None:
    log.append(StepDone(1, {}))
    with log.path.open("ab") as file:
        file.write(line + b"\n")
    log.append(StepDone(2, {}))

    logged = list(log.follow())

    assert [entry.event for entry in logged] == [StepDone(1, {}), StepDone(2, {})]
    assert logged[-1].offset == log.path.stat().st_size


def test_a_line_longer_than_a_block_is_read_whole(log: EventLog) -> None:
    log.append(Notice("info", "x" * 3_000_000))
    log.append(StepDone(2, {}))

    offsets = [logged.offset for logged in log.follow()]

    assert [offset for offset, _ in log.blocks()] == [0]
    assert offsets[-1] == log.size
    assert len(offsets) == 2


def test_a_pipe_in_place_of_a_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "events.jsonl")

    assert list(EventLog(tmp_path / "events.jsonl").follow()) == []


def test_what_could_not_be_written_is_written_later_in_order(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "not there yet" / "events.jsonl")
    log.append(StepDone(1, {}))
    log.append(StepDone(2, {}))

    log.path.parent.mkdir()
    log.append(StepDone(3, {}))

    assert _events(log) == [StepDone(1, {}), StepDone(2, {}), StepDone(3, {})]


@pytest.mark.fault("B2")
def test_a_full_disk_loses_no_event_and_spoils_no_line(log: EventLog) -> None:
    resource = pytest.importorskip("resource")
    log.append(StepDone(1, {}))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 20, limits[1]))
    try:
        log.append(StepDone(2, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    torn = _events(log)
    log.append(StepDone(3, {}))

    assert torn == [StepDone(1, {})]
    assert _events(log) == [StepDone(1, {}), StepDone(2, {}), StepDone(3, {})]


def test_two_writers_one_after_the_other_make_one_log(log: EventLog) -> None:
    log.append(StepDone(1, {}))

    EventLog(log.path).append(StepDone(2, {}))

    assert _events(log) == [StepDone(1, {}), StepDone(2, {})]
    assert b"\n\n" not in log.path.read_bytes()


def test_every_subscriber_receives_every_event_once_and_in_the_same_order() -> None:
    def answer(event: Event) -> list[Event]:
        return [Notice("info", "first"), Notice("info", "second")] if event == step else []

    def answer_once_more(event: Event) -> list[Event]:
        return [RunFinished("finished", 1)] if event == Notice("info", "first") else []

    before: list[Event] = []
    after: list[Event] = []
    step = StepDone(1, {})
    publisher = Publisher(before.append, answer, answer_once_more, after.append)

    publisher(step)

    followed = [Notice("info", "first"), Notice("info", "second"), RunFinished("finished", 1)]
    assert before == after == [step, *followed]

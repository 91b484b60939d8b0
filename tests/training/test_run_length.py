"""More steps: asked for while a run trains or after its end, they make no other step different."""

from pathlib import Path

import pytest
import torch

from tests.helpers.toy import make_setup
from trainer.checkpoints.checkpoint import newest_checkpoint, restore_checkpoint
from trainer.config.schedules import SCHEDULES, CosineOptions, LinearOptions, NoamOptions
from trainer.core.events import Event, EventLog, PlanChanged, RunStarted, StepDone, ValidationDone
from trainer.core.train_state import TrainState
from trainer.runs.control import pop_step_request, request_steps, requested_steps
from trainer.runs.metric_store import MetricStore
from trainer.training.loop import train
from trainer.training.run_length import MIN_RATE_SHARE, lr_factor, restore_run_length


def _train(state: TrainState, told: PlanChanged | None = None) -> list[Event]:
    events: list[Event] = []
    restore_run_length(state, told, events.append)
    assert train(state, events.append) == "finished"
    return events


def _steps(events: list[Event]) -> dict[int, tuple[float, float]]:
    return {
        event.step: (event.metrics["train/loss"], event.metrics["train/lr"])
        for event in events
        if isinstance(event, StepDone)
    }


def _resumed(folder: Path) -> TrainState:
    state = make_setup(folder, steps=8)
    torch.manual_seed(99)
    checkpoint, _ = newest_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    state.first_step = restore_checkpoint(state, checkpoint) + 1
    return state


def test_steps_added_during_a_run_and_after_its_end_are_the_same(tmp_path: Path) -> None:
    early = make_setup(tmp_path / "early", steps=8)
    request_steps(early.folder, 13)
    at_once = _train(early)

    first = _train(make_setup(tmp_path / "late", steps=8))
    request_steps(tmp_path / "late", 13)
    late = _resumed(tmp_path / "late")
    second = _train(late)

    assert list(_steps(at_once)) == list(range(1, 14))
    assert _steps(first) | _steps(second) == _steps(at_once)
    for name, value in early.model.state_dict().items():
        assert torch.equal(value, late.model.state_dict()[name]), name


def test_a_change_is_told_once_and_holds_for_every_later_start(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=8)
    request_steps(tmp_path, 10)
    events = _train(state)
    changes = [event for event in events if isinstance(event, PlanChanged)]
    again = _resumed(tmp_path)

    restore_run_length(again, changes[-1], events.append)

    assert changes == [PlanChanged(0, 10)]
    assert (again.first_step, again.last_step) == (11, 10)
    assert requested_steps(tmp_path) is None


def test_a_run_asked_to_end_sooner_ends_after_the_step_at_hand(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=8)
    state.first_step = 5
    request_steps(tmp_path, 6)

    events = _train(state)

    assert list(_steps(events)) == [5, 6]
    assert [event.step for event in events if isinstance(event, ValidationDone)] == [6]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("linear", LinearOptions(warmup_steps=0), MIN_RATE_SHARE),
        ("cosine", CosineOptions(warmup_steps=0, final_share=0.2), 0.2),
        ("noam", NoamOptions(warmup_steps=25), 0.25),
    ],
)
def test_added_steps_go_on_where_the_schedule_ends(
    name: str, options: object, expected: float, tmp_path: Path
) -> None:
    state = make_setup(tmp_path, steps=100)
    state.schedule, state.schedule_options = SCHEDULES[name], options
    planned = [SCHEDULES[name].factor(step, 100, options) for step in range(1, 101)]

    state.last_step = 400

    assert [lr_factor(state, step) for step in range(1, 101)] == planned
    assert lr_factor(state, 400) == pytest.approx(expected, rel=0.02)


def test_a_word_that_is_no_number_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    (tmp_path / "control" / "plan").write_text("many", encoding="utf-8")

    assert (requested_steps(tmp_path), pop_step_request(tmp_path)) == (None, None)


def test_the_series_knows_the_end_that_was_told_last(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.path.touch()
    series = MetricStore(log)
    before = series.planned_steps
    log.append(RunStarted(1, 100, 10))
    series.update()
    at_first = series.planned_steps

    log.append(PlanChanged(50, 120))
    series.update()

    assert (before, at_first, series.planned_steps) == (0, 100, 120)
    assert [mark.kind for mark in series.marks] == ["started", "plan"]

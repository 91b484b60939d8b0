"""Alerts: each told once with its remedy, and silence while all is well."""

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from trainer.callbacks.alerts import Alerts
from trainer.core.events import CheckpointSaved, Event, Notice, Publisher, StepDone, ValidationDone


def _told(
    events: Iterable[Event],
    total_gib: float = math.inf,
    patience: int = 0,
    free_gib: Callable[[Path], float] = lambda folder: 100.0,
) -> list[Notice]:
    """Return what alerts say to these events."""
    passed: list[Event] = []
    alerts = Alerts(Path("run"), total_gib=total_gib, patience=patience, free_gib=free_gib)
    emit = Publisher(passed.append, alerts)
    events = list(events)
    for event in events:
        emit(event)
    assert [event for event in passed if not isinstance(event, Notice)] == events
    return [event for event in passed if isinstance(event, Notice)]


def _step(step: int, loss: float = 1.0, seconds: float = 0.1, peak_gib: float = 1.0) -> StepDone:
    metrics = {"train/loss": loss, "perf/s_per_step": seconds, "perf/memory_peak_gib": peak_gib}
    return StepDone(step, metrics)


def _falling(step: int) -> float:
    return 1.0 + 4.0 * math.exp(-step / 100) + 0.3 * math.sin(step)


def test_a_run_that_goes_well_is_left_alone() -> None:
    steps: list[Event] = [_step(step, _falling(step)) for step in range(1, 1001)]
    checks = [ValidationDone(step, {"val/loss": _falling(step)}) for step in range(100, 500, 100)]
    saves = [CheckpointSaved(step, "x", False, 2**30, 1.0) for step in (100, 200)]

    assert _told([*steps, *checks, *saves], total_gib=24.0) == []


@pytest.mark.fault("E12")
def test_a_loss_that_leaves_its_best_behind_is_told_once_and_again_after_it_came_back() -> None:
    losses = [1.0] * 300 + [3.0] * 600 + [1.0] * 600 + [3.0] * 600

    notices = _told(_step(step, loss) for step, loss in enumerate(losses, start=1))

    assert len(notices) == 2
    assert "far above its best" in notices[0].text
    assert 500 < (notices[0].step or 0) < 560
    assert "lower learning rate" in notices[0].remedy


def test_a_loss_below_zero_or_without_a_value_raises_no_alarm() -> None:
    losses = [-1.0] * 300 + [math.nan] + [-0.2] * 600

    assert _told(_step(step, loss) for step, loss in enumerate(losses, start=1)) == []


def test_steps_that_become_slow_are_told() -> None:
    seconds = [5.0] * 10 + [0.1] * 190 + [0.3] * 200

    notices = _told(_step(step, seconds=s) for step, s in enumerate(seconds, start=1))

    assert [notice.step for notice in notices] == [300]
    assert "takes 0.3 s; at first it took 0.1 s" in notices[0].text


def test_memory_that_is_nearly_full_is_told() -> None:
    steps = [_step(1, peak_gib=22.0), _step(2, peak_gib=23.5), _step(3, peak_gib=23.9)]

    notices = _told(steps, total_gib=24.0)

    assert [notice.step for notice in notices] == [2]
    assert "gradient checkpointing" in notices[0].remedy
    assert _told(steps) == []


def test_a_plateau_is_told_unless_the_run_has_patience() -> None:
    losses = [2.0, 1.0, 1.1, 1.2, 1.1, 1.3, 1.2, 1.1]
    checks = [ValidationDone(step, {"val/loss": loss}) for step, loss in enumerate(losses, start=1)]

    notices = _told(checks)

    assert [(notice.level, notice.step) for notice in notices] == [("info", 7)]
    assert "best was 1 at step 2" in notices[0].text
    assert _told(checks, patience=10) == []


@pytest.mark.fault("B3")
def test_a_disk_that_fills_is_told_before_it_is_full() -> None:
    save = CheckpointSaved(100, "x", False, 4 * 2**30, 1.0)

    notices = _told([save, save], free_gib=lambda folder: 11.0)

    assert len(notices) == 1
    assert "11 GiB free" in notices[0].text
    assert "empty the trash" in notices[0].remedy

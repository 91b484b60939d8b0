"""Loss or gradients that are no numbers: nothing is updated, the run goes back once, then stops."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from tests.helpers.toy import OPTIMIZERS, make_setup
from trainer.checkpoints.checkpoint import newest_checkpoint, restore_checkpoint
from trainer.core.events import CheckpointSaved, Event, Notice, RunAdapted, StepDone
from trainer.core.train_state import Cadence, Precision, TrainState
from trainer.training.loop import train, train_step
from trainer.training.nan_recovery import MOST_AMONG, LossNotFinite, NanRecovery
from trainer.training.oom_recovery import RestartFromCheckpoint, restore_adaptation


def _poison(state: TrainState, *steps: int, gradient_only: bool = False) -> None:
    """Let the loss, or only its gradient, be NaN in some steps."""
    losses, of_step = state.family.losses, state.train_batches.micro_batches
    now = [0]

    def watched(step: int) -> Any:
        now[0] = step
        return of_step(step)

    def poisoned(model: Any, batch: Any) -> dict[str, Tensor]:
        found = losses(model, batch)
        if now[0] not in steps:
            return found
        if gradient_only:
            found["error"].register_hook(lambda grad: grad * math.nan)
            return found
        return {name: value * math.nan for name, value in found.items()}

    state.train_batches.micro_batches = watched  # type: ignore[method-assign]
    state.family = replace(state.family, losses=poisoned)


def _digest(state: TrainState) -> dict[str, bytes]:
    """Return every number that a step may change, as bytes by name."""
    found: dict[str, bytes] = {}
    parts = {
        "model": state.model.state_dict(),
        "average": state.average or {},
        "optimizer": state.optimizer.state_dict(),
    }

    def collect(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            found[name] = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        elif isinstance(value, dict):
            for key, item in value.items():
                collect(f"{name}/{key}", item)
        elif isinstance(value, list | tuple):
            for at, item in enumerate(value):
                collect(f"{name}/{at}", item)
        elif not name.endswith("/lr"):
            found[name] = repr(value).encode()

    collect("", parts)
    return found


def _notices(events: list[Event]) -> list[Notice]:
    return [event for event in events if isinstance(event, Notice)]


@pytest.mark.fault("E1", "E2")
@pytest.mark.parametrize("gradient_only", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_step_without_finite_numbers_changes_nothing(
    tmp_path: Path, optimizer: str, gradient_only: bool
) -> None:
    state = make_setup(tmp_path, optimizer=optimizer, num_micro_steps=2, ema_decay=0.9)
    _poison(state, 3, gradient_only=gradient_only)
    for step in (1, 2):
        train_step(state, step)
    before = _digest(state)

    train_step(state, 3)
    untouched = _digest(state)
    train_step(state, 4)

    assert untouched == before
    assert _digest(state) != before


@pytest.mark.fault("E1")
def test_a_few_such_steps_are_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=12)
    _poison(state, 3, 4, 8)
    events: list[Event] = []

    outcome = train(state, events.append)

    notices = _notices(events)
    assert outcome == "finished"
    assert [notice.step for notice in notices] == [3, 4, 8]
    assert "clip-3-0, clip-3-1" in notices[0].text
    # What a checkpoint of step 4 or 8 would hold is no longer the run's best knowledge.
    assert [event.step for event in events if isinstance(event, CheckpointSaved)] == [12]
    assert all(bool(value.isfinite().all()) for value in state.model.state_dict().values())


@pytest.mark.fault("E1")
def test_a_run_goes_back_once_with_a_lower_rate_and_then_stops_with_the_clips(
    tmp_path: Path,
) -> None:
    events: list[Event] = []
    first = make_setup(tmp_path, steps=20)
    _poison(first, *range(6, 20))
    with pytest.raises(RestartFromCheckpoint):
        train(first, events.append)
    adapted = [event for event in events if isinstance(event, RunAdapted)][-1]
    second = make_setup(tmp_path, steps=20)
    _poison(second, *range(6, 20))
    restore_adaptation(second, adapted)
    folder, _ = newest_checkpoint(tmp_path / "checkpoints")
    assert folder is not None
    second.first_step = restore_checkpoint(second, folder) + 1

    with pytest.raises(LossNotFinite, match="steps 6, 7, 8, 9.*clip-6-0") as stopped:
        train(second, events.append)

    assert (second.first_step, adapted.rollbacks, adapted.rate) == (5, 1, pytest.approx(1 / 3))
    assert stopped.value.exit_code == 20
    rates = [e.metrics["train/lr"] for e in events if isinstance(e, StepDone) and e.step == 5]
    assert rates[1] == pytest.approx(rates[0] / 3)


def test_a_run_in_half_precision_goes_back_in_full_precision(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=20)
    state.precision = Precision(torch.bfloat16)
    _poison(state, *range(1, 20))
    events: list[Event] = []

    with pytest.raises(RestartFromCheckpoint):
        train(state, events.append)
    adapted = [event for event in events if isinstance(event, RunAdapted)][-1]
    restore_adaptation(state, adapted)

    assert (adapted.full_precision, adapted.rate) == (True, 1.0)
    assert state.precision.autocast_dtype is None


def test_now_and_then_is_too_often_in_the_end(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=90, roll_back=False)
    state.save_every = state.validate_every = Cadence()
    _poison(state, *range(2, 90, 2))
    events: list[Event] = []

    with pytest.raises(LossNotFinite):
        train(state, events.append)

    assert len(_notices(events)) == MOST_AMONG + 1


@pytest.mark.fault("E4")
def test_a_scaler_may_calibrate_but_not_collapse(tmp_path: Path) -> None:
    state = make_setup(tmp_path, roll_back=False)
    events: list[Event] = []
    state.precision = Precision(torch.float16, GradScaler("cpu", init_scale=4.0))
    watch = NanRecovery(state, events.append)

    for step in range(1, 30):
        watch.record(step, 1.0, math.inf)
    calm = list(events)
    state.precision = Precision(torch.float16, GradScaler("cpu", init_scale=1e-7))

    assert calm == []
    with pytest.raises(LossNotFinite, match="without mixed precision"):
        watch.record(30, 1.0, math.inf)


@pytest.mark.fault("E4")
def test_a_loss_that_is_no_number_passes_no_scaler(tmp_path: Path) -> None:
    state = make_setup(tmp_path)
    state.precision = Precision(None, GradScaler("cpu", init_scale=4.0))
    _poison(state, 2)
    # A loss can be NaN while its gradient is finite.
    losses = state.family.losses
    state.family = replace(
        state.family,
        losses=lambda model, batch: {
            k: v.nan_to_num() + v.detach() for k, v in losses(model, batch).items()
        },
    )
    train_step(state, 1)
    before = _digest(state)

    train_step(state, 2)

    assert _digest(state) == before


def test_the_count_of_steps_left_out_outlives_a_resume(tmp_path: Path) -> None:
    state = make_setup(tmp_path, roll_back=False)
    state.progress = {"skipped": list(range(1, MOST_AMONG + 1))}

    with pytest.raises(LossNotFinite):
        NanRecovery(state, lambda event: None).record(MOST_AMONG + 1, math.nan, 1.0)

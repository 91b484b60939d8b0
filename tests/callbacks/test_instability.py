"""The first-steps guard: silent while it goes well, one word with a remedy when not."""

import math
from pathlib import Path

import pytest
import torch

from tests.helpers.toy import make_setup, set_lr_factor
from trainer.callbacks.instability import (
    FIRST_STEPS,
    InstabilityMonitor,
    adamw_restart_config,
    find_instability,
    has_risen,
)
from trainer.core.events import CheckpointSaved, Event, Notice, Publisher, StepDone
from trainer.core.run_config import Choice, DataConfig, RunConfig
from trainer.training.loop import train
from trainer.training.nan_recovery import LossNotFinite

FALLING = [4.0 * math.exp(-step / 60) + 0.3 * math.sin(step) for step in range(100)]
CALM = [2.0 + math.sin(3 * step) for step in range(100)]
LR = 1e-2


def _config(optimizer: str = "prodigy") -> RunConfig:
    data = DataConfig(train_csv="a.csv")
    return RunConfig(data=data, optimizer=Choice(optimizer, {"lr": LR}), base="base")


def _notices(events: list[Event]) -> list[Notice]:
    return [event for event in events if isinstance(event, Notice)]


def _told(
    losses: list[float], norms: list[float], known: dict[str, list[float]] | None = None
) -> list[Notice]:
    """Return what a guard says to these steps after the known ones."""
    events: list[Event] = []
    emit = Publisher(events.append, InstabilityMonitor(Path("runs/x"), _config(), LR, known or {}))
    first = len((known or {}).get("train/loss", [])) + 1
    for step, (loss, norm) in enumerate(zip(losses, norms, strict=True), start=first):
        emit(StepDone(step, {"train/loss": loss, "train/grad_norm": norm}))
    assert sum(isinstance(event, StepDone) for event in events) == len(losses)
    return _notices(events)


def test_a_loss_that_falls_with_noise_raises_no_alarm_at_any_step() -> None:
    assert [find_instability(FALLING[:n], CALM[:n]) for n in range(101)] == [None] * 101


def test_one_odd_batch_and_one_odd_gradient_raise_no_alarm() -> None:
    losses, norms = [*FALLING[:30], 40.0, *FALLING[30:]], [*CALM[:30], 1e6, *CALM[30:]]

    assert [find_instability(losses[:n], norms[:n]) for n in range(102)] == [None] * 102


@pytest.mark.parametrize(
    ("losses", "norms", "words"),
    [
        ([*FALLING[:7], *[math.nan] * 3], CALM[:10], "NaN or infinite"),
        ([*FALLING[:7], *[math.inf] * 3], CALM[:10], "NaN or infinite"),
        ([4.0] * 10 + [9.0] * 5, [1.0] * 15, "rose from 4 to 9"),
        ([4.0] + [9e5, 3.0, 9e4] * 5, CALM[:16], "rose from 5 to 9e+04"),
        ([4.0] * 20, [1.0] * 15 + [50.0] * 5, "grew from 1 to 50"),
        ([4.0] * 20, [math.inf] * 20, "20 steps in a row"),
    ],
)
@pytest.mark.fault("E3")
def test_each_kind_of_harm_is_named(losses: list[float], norms: list[float], words: str) -> None:
    assert words in (find_instability(losses, norms) or "")


def test_one_loss_that_is_no_number_is_left_to_those_who_leave_its_step_out() -> None:
    assert find_instability([*FALLING[:9], math.nan, *FALLING[9:20]], CALM[:21]) is None


def test_a_scaler_that_calibrates_is_no_harm() -> None:
    assert find_instability([4.0] * 20, [math.inf] * 3 + [1.0] * 17) is None


def test_losses_below_zero_are_judged_like_others() -> None:
    assert not has_risen([-1.0, -1.1, -0.9, -1.0, -1.05] + [-1.4] * 5)
    assert has_risen([-1.0, -1.1, -0.9, -1.0, -1.05] + [1.0] * 5)


def test_harm_is_told_once_with_the_same_run_under_adamw() -> None:
    notices = _told([4.0] * 10 + [9.0] * 30, [1.0] * 40)

    assert len(notices) == 1
    assert notices[0].step == 13
    assert notices[0].level == "warning"
    assert "--config runs/x/run.json --run runs/x-adamw --optimizer adamw" in notices[0].remedy


def test_only_the_first_steps_are_watched() -> None:
    assert _told([4.0] * FIRST_STEPS + [9.0] * 30, [1.0] * (FIRST_STEPS + 30)) == []


def test_a_resumed_run_is_judged_as_a_whole_and_told_nothing_twice() -> None:
    calm = {"train/loss": [4.0] * 12, "train/grad_norm": [1.0] * 12}
    harmed = {"train/loss": [4.0] * 10 + [9.0] * 5, "train/grad_norm": [1.0] * 15}

    assert len(_told([9.0] * 5, [1.0] * 5, calm)) == 1
    assert _told([9.0] * 5, [1.0] * 5, harmed) == []


def test_the_rescue_starts_from_the_last_good_checkpoint() -> None:
    events: list[Event] = []
    emit = Publisher(events.append, InstabilityMonitor(Path("runs/x"), _config(), LR, {}))
    emit(CheckpointSaved(5, "checkpoints/step-00000005", True, 1, 0.1))
    emit(CheckpointSaved(9, "checkpoints/step-00000009", False, 1, 0.1))
    for step in (10, 11, 12):
        emit(StepDone(step, {"train/loss": math.nan, "train/grad_norm": 1.0}))

    remedy = _notices(events)[0].remedy

    assert "from the last good checkpoint" in remedy
    assert "--base runs/x/checkpoints/step-00000005" in remedy


def test_the_rescue_is_the_same_run_but_for_the_optimizer() -> None:
    rescue = adamw_restart_config(_config(), LR, Path("runs/x/checkpoints/step-00000005"))
    slower = adamw_restart_config(_config("adamw"), LR, None)
    far_too_high = adamw_restart_config(_config("adamw"), 0.9, None)

    assert rescue.optimizer == Choice("adamw")
    assert rescue.base == "runs/x/checkpoints/step-00000005"
    assert rescue.data == _config().data
    assert slower.optimizer == Choice("adamw", {"lr": LR / 10})
    assert slower.base == "base"
    assert far_too_high.optimizer == Choice("adamw", {"lr": 0.002})


def test_the_best_checkpoint_of_ruined_weights_is_no_good_one() -> None:
    events: list[Event] = []
    emit = Publisher(events.append, InstabilityMonitor(Path("runs/x"), _config(), LR, {}))
    for step in range(1, 11):
        emit(StepDone(step, {"train/loss": 1.0 if step == 1 else 9.0, "train/grad_norm": 1.0}))
        if step == 6:
            emit(CheckpointSaved(6, "checkpoints/step-00000006", True, 1, 0.1))

    assert "--base" not in _notices(events)[0].remedy


def test_a_rate_that_is_far_too_high_is_told_while_it_trains(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=20)
    state.base_lr = 30.0
    set_lr_factor(state, lambda step: 1.0)
    events: list[Event] = []

    train(
        state,
        Publisher(events.append, InstabilityMonitor(tmp_path, state.config, state.base_lr, {})),
    )

    assert len(_notices(events)) == 1
    assert "a lower learning rate" in _notices(events)[0].remedy
    assert _notices(events)[0].remedy.endswith("--lr 0.002")


def test_a_loss_that_is_no_number_is_told_before_the_run_ends(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=10, roll_back=False)
    with torch.no_grad():
        state.model.outer.bias.fill_(float("nan"))  # type: ignore[union-attr]
    events: list[Event] = []

    with pytest.raises(LossNotFinite):
        train(state, Publisher(events.append, InstabilityMonitor(tmp_path, state.config, LR, {})))

    assert sum("is diverging" in notice.text for notice in _notices(events)) == 1


def test_the_usual_rate_raises_no_alarm_while_it_trains(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=100)
    events: list[Event] = []

    train(
        state,
        Publisher(events.append, InstabilityMonitor(tmp_path, state.config, state.base_lr, {})),
    )

    assert _notices(events) == []


def test_every_step_says_how_long_its_optimizer_took(tmp_path: Path) -> None:
    events: list[Event] = []

    train(make_setup(tmp_path, steps=4), events.append)

    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    assert all(0 < step["perf/optimizer_s"] < step["perf/s_per_step"] for step in steps)

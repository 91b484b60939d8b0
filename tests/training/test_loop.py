"""The loop: what it emits, when it stops, and that stopping and going on changes no bit."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.toy import OPTIMIZERS, make_setup, set_lr_factor
from trainer.checkpoints.checkpoint import newest_checkpoint, restore_checkpoint
from trainer.core.events import (
    CheckpointSaved,
    Event,
    Notice,
    PreviewMade,
    StepDone,
    ValidationDone,
)
from trainer.core.train_state import Cadence, TrainState, World
from trainer.core.types import Batch
from trainer.state.seeding import seed_everything
from trainer.training.loop import seed_step, train
from trainer.training.nan_recovery import LossNotFinite


def _train(state: TrainState) -> tuple[str, list[Event]]:
    events: list[Event] = []
    return train(state, events.append), events


def _losses(events: list[Event]) -> dict[int, float]:
    return {e.step: e.metrics["train/loss"] for e in events if isinstance(e, StepDone)}


def test_the_loss_falls_and_every_step_is_told(tmp_path: Path) -> None:
    outcome, events = _train(make_setup(tmp_path, steps=40))

    losses = _losses(events)

    assert outcome == "finished"
    assert list(losses) == list(range(1, 41))
    assert losses[40] < losses[1]


def test_every_step_carries_the_named_metrics(tmp_path: Path) -> None:
    _, events = _train(make_setup(tmp_path, steps=2))

    first = next(event for event in events if isinstance(event, StepDone))

    assert {
        "train/loss",
        "train/loss/error",
        "train/lr",
        "train/grad_norm",
        "train/epoch",
        "perf/s_per_step",
        "perf/audio_s_per_s",
        "perf/memory_gib",
        "perf/host_memory_gib",
        "perf/data_wait_s",
        "perf/forward_s",
        "perf/backward_s",
        "perf/optimizer_s",
    } <= first.metrics.keys()


def test_the_parts_of_a_step_are_told_and_fill_no_more_than_it(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=8)
    of_step = state.train_batches.micro_batches

    def slow(step: int) -> list[Batch]:
        time.sleep(0.02)
        return of_step(step)

    state.train_batches.micro_batches = slow  # type: ignore[method-assign]
    _, events = _train(state)

    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    names = ("perf/data_wait_s", "perf/forward_s", "perf/backward_s", "perf/optimizer_s")
    assert len(steps) == 8
    assert all(step["perf/data_wait_s"] >= 0.02 for step in steps)
    assert all(min(step[name] for name in names) > 0 for step in steps)
    assert all(sum(step[name] for name in names) <= step["perf/s_per_step"] for step in steps)


def test_validation_saving_and_previews_come_at_their_cadence_and_at_the_end(
    tmp_path: Path,
) -> None:
    state = make_setup(tmp_path, steps=10)
    state.preview_every = Cadence(5)

    _, events = _train(state)

    assert [e.step for e in events if isinstance(e, ValidationDone)] == [4, 8, 10]
    assert [e.step for e in events if isinstance(e, PreviewMade)] == [5, 10]
    assert {4, 8, 10} <= {e.step for e in events if isinstance(e, CheckpointSaved)}


def test_a_disk_that_takes_no_preview_ends_no_run(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=10)
    state.preview_every = Cadence(5)
    (tmp_path / "previews").rmdir()
    (tmp_path / "previews").touch()  # As good as full: no file can be written there.

    outcome, events = _train(state)

    told = [event for event in events if isinstance(event, Notice)]
    assert outcome == "finished"
    assert [event.step for event in told if "No preview was made" in event.text] == [5, 10]


def test_a_stop_request_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=100)
    (tmp_path / "control" / "stop").touch()

    outcome, events = _train(state)

    assert outcome == "stopped"
    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [1]


def test_requests_are_carried_out_once(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=3)
    state.save_every = state.validate_every = state.preview_every = Cadence()
    (tmp_path / "control" / "save").touch()
    (tmp_path / "control" / "preview").touch()

    _, events = _train(state)

    assert [e.step for e in events if isinstance(e, PreviewMade)] == [1]
    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [1, 3]
    assert not list((tmp_path / "control").iterdir())


def test_patience_ends_a_run_that_does_not_improve(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=100, patience=2)
    state.validate_every = Cadence(1)
    set_lr_factor(state, lambda step: 0.0)

    outcome, events = _train(state)

    assert outcome == "finished"
    assert max(_losses(events)) < 100
    assert [e.text for e in events if isinstance(e, Notice)][-1].startswith("Stopped early")


def test_a_run_resumed_after_an_early_stop_has_its_patience_anew(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=100, patience=3)
    state.validate_every = Cadence(1)
    set_lr_factor(state, lambda step: 0.0)
    state.progress = {"since_best": 3, "best_loss": 0.0}

    _, events = _train(state)

    assert len(_losses(events)) == 3


def test_a_run_resumed_after_another_stop_keeps_the_patience_it_had_left(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=100, patience=3)
    state.validate_every = Cadence(1)
    set_lr_factor(state, lambda step: 0.0)
    state.progress = {"since_best": 2, "best_loss": 0.0}

    _, events = _train(state)

    assert len(_losses(events)) == 1


def test_a_loss_that_is_no_number_stops_the_run_and_saves_nothing(tmp_path: Path) -> None:
    state = make_setup(tmp_path, steps=10, roll_back=False)
    with torch.no_grad():
        state.model.outer.bias.fill_(float("nan"))  # type: ignore[union-attr]

    with pytest.raises(LossNotFinite, match="steps 1, 2, 3, 4"):
        _train(state)

    assert not list((tmp_path / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("ema_decay", "num_micro_steps"), [(0.0, 1), (0.99, 2)])
def test_stopping_and_resuming_gives_the_same_bits(
    tmp_path: Path, optimizer: str, ema_decay: float, num_micro_steps: int
) -> None:
    how: dict[str, Any] = {
        "optimizer": optimizer, "ema_decay": ema_decay, "num_micro_steps": num_micro_steps,
    }  # fmt: skip
    whole = make_setup(tmp_path / "whole", **how)
    _, whole_events = _train(whole)

    first = make_setup(tmp_path / "parts", **how)
    first.last_step = 7
    _, first_events = _train(first)
    second = make_setup(tmp_path / "parts", **how)
    torch.manual_seed(99)
    folder, complaints = newest_checkpoint(tmp_path / "parts" / "checkpoints")
    assert folder is not None
    second.first_step = restore_checkpoint(second, folder) + 1
    _, second_events = _train(second)

    assert complaints == []
    assert second.first_step == 8
    assert _losses(first_events) | _losses(second_events) == _losses(whole_events)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


@pytest.mark.fault("E15")
@pytest.mark.parametrize(("configured", "size"), [(1, 1), (2, 2), (1, 2), (1, 4), (4, 2)])
def test_no_two_ranks_draw_the_same_at_any_step_also_of_a_run_that_grew(
    tmp_path: Path, configured: int, size: int
) -> None:
    state = make_setup(tmp_path)
    training = replace(state.config.training, num_processes=configured)
    state.config = replace(state.config, training=training)
    draws: list[float] = []

    for rank in range(size):
        state.world = World(rank, size, rank)
        for step in range(1, 9):
            seed_step(state, step)
            draws.append(float(torch.rand(())))

    assert len(set(draws)) == 8 * size


@pytest.mark.parametrize("size", [1, 2])
def test_a_run_of_its_own_size_draws_as_it_always_did(tmp_path: Path, size: int) -> None:
    state = make_setup(tmp_path)
    training = replace(state.config.training, num_processes=size, seed=7)
    state.config = replace(state.config, training=training)
    state.world = World(size - 1, size, size - 1)

    seed_step(state, 5)

    assert torch.initial_seed() == (7 * 1_000_003 + 5) * size + size - 1


@pytest.mark.parametrize("seed", [20260101_120000, 2**70])
def test_a_seed_may_be_a_date_and_time_or_longer(tmp_path: Path, seed: int) -> None:
    state = make_setup(tmp_path, steps=2, seed=seed)

    seed_everything(seed)

    assert _train(state)[0] == "finished"


def test_micro_steps_add_up_to_the_large_batch(tmp_path: Path) -> None:
    """Dropout and BatchNorm see other batches, so both are put out of the way."""
    setups = [make_setup(tmp_path / str(n), num_micro_steps=n, steps=3) for n in (1, 4)]
    for state in setups:
        state.model.norm = torch.nn.Identity()  # type: ignore[assignment]
        state.model.eval()

    losses = [_losses(_train(state)[1]) for state in setups]

    assert losses[0] == pytest.approx(losses[1], rel=1e-5)

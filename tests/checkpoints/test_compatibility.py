"""Resuming under other circumstances: what changed, what it means, and what is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.toy import OPTIMIZERS, make_setup
from trainer.callbacks.replay_check import MOST_STEPS, ReplayCheck
from trainer.checkpoints.checkpoint import restore_checkpoint, save_checkpoint, saved_scope
from trainer.checkpoints.compatibility import (
    FRESH_OPTIMIZER,
    HARMLESS,
    INEXACT,
    REFUSED,
    changed_config,
    compare_configs,
    compare_scopes,
    describe_scope,
    read_changes,
    refuse_processes,
)
from trainer.core.errors import ConfigError, RunOwned
from trainer.core.events import Event, Notice, Publisher, ResumeVerified, StepDone
from trainer.core.metrics import GRAD_NORM
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.core.train_state import TrainState
from trainer.runs.run import Run
from trainer.training.assemble import _restore
from trainer.training.loop import train_step

CONFIG = RunConfig(data=DataConfig(train_csv="a.csv"), training=TrainingConfig(steps=9))


def _kinds(words: str) -> list[tuple[str, str]]:
    changed = changed_config(CONFIG, read_changes(CONFIG, words.split()))
    found = compare_configs(CONFIG.to_json(), changed.to_json())
    return [(each.name, each.kind) for each in found]


@pytest.mark.fault("E14")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("", []),
        ("training.save_every=9", [("training.save_every", HARMLESS)]),
        ("training.validate_every=2", [("training.validate_every", HARMLESS)]),
        ("training.preview_text=hello", [("training.preview_text", HARMLESS)]),
        ("training.keep_last=9", [("training.keep_last", HARMLESS)]),
        ("training.log_every=7", [("training.log_every", HARMLESS)]),
        ("training.loader_workers=3", [("training.loader_workers", HARMLESS)]),
        ("training.patience=3", [("training.patience", HARMLESS)]),
        ("training.batch_size=4", [("training.batch_size", INEXACT)]),
        ("training.accumulate=2", [("training.accumulate", INEXACT)]),
        ("training.seed=5", [("training.seed", INEXACT)]),
        ("training.clip_norm=0.5", [("training.clip_norm", INEXACT)]),
        ("training.ema_decay=0.9", [("training.ema_decay", INEXACT)]),
        ("training.steps=20", [("training.steps", INEXACT)]),
        ("schedule.name=constant", [("schedule.name", INEXACT)]),
        ("optimizations.tf32.x=1", [("optimizations.tf32.x", INEXACT)]),
        ("optimizer.options.lr=0.001", [("optimizer.options.lr", INEXACT)]),
        ("optimizer.options.beta1=0.8", [("optimizer.options.beta1", FRESH_OPTIMIZER)]),
        ("optimizer.name=lion", [("optimizer.name", FRESH_OPTIMIZER)]),
        ("optimizations.lora.rank=8", [("optimizations.lora.rank", REFUSED)]),
        ("family.name=xtts", [("family.name", REFUSED)]),
        ("family.options.size=standard", [("family.options.size", REFUSED)]),
        ("base=elsewhere", [("base", REFUSED)]),
        ("data.train_csv=b.csv", [("data.train_csv", REFUSED)]),
        ("training.num_processes=2", []),
    ],
)  # fmt: skip
def test_each_change_of_the_configuration_has_its_class(
    words: str, expected: list[tuple[str, str]]
) -> None:
    assert _kinds(words) == expected


@pytest.mark.fault("E14", "E15", "A15", "C18")
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("torch", "1.0", "version of torch (1.0, now"),
        ("threads", 99, "number of threads (99, now"),
        ("world_size", 2, "number of processes (2, now 1)"),
        ("device", "another GPU", "device (another GPU, now test)"),
        ("clips", "0000", "the clips (their files or texts)"),
        ("reproducible", True, "reproducible kernels (True, now False)"),
    ],
)
def test_another_environment_is_allowed_and_told(
    tmp_path: Path, name: str, value: Any, words: str
) -> None:
    state = make_setup(tmp_path)
    now = describe_scope(state)

    found = compare_scopes(now | {name: value}, now)

    assert [each.kind for each in found] == [INEXACT]
    assert words in str(found[0])


def _saved(tmp_path: Path, **options: Any) -> tuple[TrainState, Path]:
    state = make_setup(tmp_path, **options)
    for step in (1, 2, 3):
        train_step(state, step)
    return state, tmp_path / save_checkpoint(state, 3, best=False).path


def _resumed(tmp_path: Path, folder: Path, **options: Any) -> tuple[TrainState, list[Notice]]:
    state = make_setup(tmp_path, **options)
    events: list[Event] = []
    _restore(state, folder, events.append)
    return state, [event for event in events if isinstance(event, Notice)]


def test_a_resume_as_it_was_says_nothing(tmp_path: Path) -> None:
    _, folder = _saved(tmp_path)

    state, notices = _resumed(tmp_path, folder)

    assert (state.first_step, notices) == (4, [])


@pytest.mark.fault("E14")
def test_a_changed_batch_is_told_with_what_it_means(tmp_path: Path) -> None:
    _, folder = _saved(tmp_path)

    _, notices = _resumed(tmp_path, folder, batch_size=4, keep_last=9)

    assert [notice.level for notice in notices] == ["info", "warning"]
    assert "training.keep_last (3, now 9). The result stays the same" in notices[0].text
    assert "training.batch_size (8, now 4). The run continues correctly" in notices[1].text


@pytest.mark.fault("E14")
@pytest.mark.parametrize(
    "optimizer", [name for name in OPTIMIZERS if name != "schedule_free_adamw"]
)
def test_any_optimizer_takes_over_from_a_schedule_free_one_and_trains_on(
    tmp_path: Path, optimizer: str
) -> None:
    _, folder = _saved(tmp_path, optimizer="schedule_free_adamw")
    state, notices = _resumed(tmp_path, folder, optimizer=optimizer)

    metrics = train_step(state, 4)

    assert "The optimizer state is reset" in notices[0].text
    assert bool(torch.stack(list(metrics.values())).isfinite().all())


@pytest.mark.fault("E14")
def test_a_fresh_optimizer_starts_from_the_average_that_schedule_free_would_keep(
    tmp_path: Path,
) -> None:
    before, folder = _saved(tmp_path, optimizer="schedule_free_adamw")
    trained = before.model.inner.weight.clone()  # type: ignore[operator, union-attr]

    state, _ = _resumed(tmp_path, folder, optimizer="adamw")

    assert before.optimizer_spec.set_mode is not None
    before.optimizer_spec.set_mode(before.optimizer, False)
    assert torch.allclose(state.model.inner.weight, before.model.inner.weight)  # type: ignore[arg-type]
    assert not torch.allclose(state.model.inner.weight, trained)  # type: ignore[arg-type]


@pytest.mark.fault("E14")
def test_an_average_that_is_switched_on_later_starts_from_the_trained_weights(
    tmp_path: Path,
) -> None:
    before, folder = _saved(tmp_path)

    state, _ = _resumed(tmp_path, folder, ema_decay=0.9)

    assert state.average is not None
    for name, value in before.model.named_parameters():
        assert torch.equal(state.average[name], value), name


@pytest.mark.fault("E14")
def test_another_family_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    state, folder = _saved(tmp_path)
    state.config = replace(state.config, family=Choice("xtts"))

    with pytest.raises(ConfigError, match="Start a new run with a checkpoint"):
        _restore(state, folder, lambda event: None)


@pytest.mark.fault("A15")
def test_a_checkpoint_of_the_first_format_loads_and_trains_on_as_it_did(tmp_path: Path) -> None:
    """Of the museum nothing is ever changed; new formats join it."""
    folder = Path(__file__).parent.parent / "museum" / "checkpoint-format-1"
    state = make_setup(tmp_path, ema_decay=0.9)

    done = restore_checkpoint(state, folder)
    metrics = train_step(state, done + 1)

    assert (done, saved_scope(folder)) == (3, {})
    assert state.progress["best_loss"] == 1.5
    assert float(metrics["error"]) == pytest.approx(2.9768612384796143, rel=1e-5)
    assert float(metrics[GRAD_NORM]) == pytest.approx(4.14271879196167, rel=1e-5)


def test_options_changed_at_a_resume_hold_and_leave_run_json_alone(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    text = (run.folder / "run.json").read_text()

    run.change_options(read_changes(CONFIG, ["training.batch_size=4", "optimizer.name=lion"]))
    run.change_options(read_changes(CONFIG, ["training.batch_size=2"]))

    assert run.current_config.training.batch_size == 2
    assert run.current_config.optimizer == Choice("lion")
    assert run.config == CONFIG
    assert (run.folder / "run.json").read_text() == text


def test_options_of_a_run_that_trains_cannot_be_changed(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    lock = run.take()

    with pytest.raises(RunOwned):
        Run.open(run.folder).change_options({"training": {"batch_size": 4}})

    lock.release()


@pytest.mark.parametrize("word", ["batch_size", "=4", "training.=4", "training.batchsize=4"])
def test_a_change_that_cannot_be_read_is_refused_in_a_sentence(word: str) -> None:
    with pytest.raises(ConfigError):
        changed_config(CONFIG, read_changes(CONFIG, [word]))


@pytest.mark.fault("E15")
def test_the_number_of_processes_is_changed_by_its_own_flag() -> None:
    with pytest.raises(ConfigError, match="resume RUN --gpus 2"):
        refuse_processes(read_changes(CONFIG, ["training.num_processes=2"]))


def _verified(
    before: list[float], now: list[float], first_step: int
) -> tuple[list[ResumeVerified], list[Notice]]:
    steps = range(1, len(before) + 1)
    columns = {"step": list(steps), "train/loss": before, "train/grad_norm": before}
    events: list[Event] = []
    emit = Publisher(events.append, ReplayCheck(columns, first_step))
    for step, loss in enumerate(now, start=first_step):
        emit(StepDone(step, {"train/loss": loss, "train/grad_norm": loss}))
    verified = [event for event in events if isinstance(event, ResumeVerified)]
    return verified, [event for event in events if isinstance(event, Notice)]


@pytest.mark.fault("A1")
def test_a_resume_that_repeats_every_bit_is_verified(tmp_path: Path) -> None:
    verified, notices = _verified([4.0, 3.0, 2.5, float("nan")], [2.5, float("nan"), 1.0], 3)

    assert verified == [ResumeVerified(4, 2, 0.0)]
    assert [notice.level for notice in notices] == ["info"]
    assert "steps 3 to 4" in notices[0].text


@pytest.mark.parametrize(("off", "level"), [(1e-6, "info"), (1e-2, "warning")])
def test_a_resume_that_differs_is_told_with_its_size(off: float, level: str) -> None:
    verified, notices = _verified([4.0, 3.0, 2.5], [3.0, 2.5 * (1 + off), 1.0], 2)

    assert (verified[0].num_steps, verified[0].difference) == (2, pytest.approx(off, rel=0.05))
    assert (notices[0].level, "first at step 3" in notices[0].text) == (level, True)


def test_where_nothing_was_done_before_there_is_nothing_to_verify() -> None:
    assert _verified([4.0, 3.0], [2.0, 1.0], 3) == ([], [])
    assert _verified([], [2.0, 1.0], 1) == ([], [])


def test_of_many_steps_only_the_first_are_compared() -> None:
    verified, _ = _verified([1.0] * 100, [1.0] * 100, 1)

    assert verified == [ResumeVerified(MOST_STEPS, MOST_STEPS, 0.0)]

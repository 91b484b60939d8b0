"""Memory that runs out: smaller pieces of the same batch, remembered; then a word with numbers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.toy import make_setup
from trainer.core.events import Event, EventLog, Notice, PreviewMade, RunAdapted
from trainer.core.train_state import Cadence, TrainState
from trainer.runs.metric_store import MetricStore
from trainer.training.loop import train, train_step
from trainer.training.oom_recovery import (
    OomGuard,
    OutOfMemory,
    RestartFromCheckpoint,
    restore_adaptation,
)
from trainer.training.optimizer_step import is_out_of_memory


def _calm_setup(folder: Path, **options: Any) -> TrainState:
    """Return a setup whose dropout and BatchNorm rest: they see other batches when one is cut."""
    state = make_setup(folder, **options)
    state.model.train = lambda mode=True: state.model  # type: ignore[method-assign]
    state.model.eval = lambda: state.model  # type: ignore[method-assign]
    for module in state.model.modules():
        module.training = False
    return state


def _limit(state: TrainState, most_clips: int, *, while_training: bool = True) -> list[int]:
    """Raise torch's error above a number of clips; the list it returns takes the sizes tried."""
    losses = state.family.losses
    tried: list[int] = []

    def limited(model: Any, batch: Any) -> dict[str, Tensor]:
        tried.append(len(batch["x"]))
        if len(batch["x"]) > most_clips and (while_training == torch.is_grad_enabled()):
            if len(batch["x"]) > 1:
                # A pass that fails has begun to change running statistics.
                model(batch["x"] + 100.0)
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried {len(batch['x'])} clips.")
        return losses(model, batch)

    state.family = replace(state.family, losses=limited)
    return tried


def _train(state: TrainState) -> list[Event]:
    events: list[Event] = []
    assert train(state, events.append) == "finished"
    return events


def _adapted(events: list[Event]) -> list[RunAdapted]:
    return [event for event in events if isinstance(event, RunAdapted)]


@pytest.mark.fault("E5")
@pytest.mark.parametrize("num_micro_steps", [1, 2])
def test_smaller_pieces_of_the_same_clips_give_the_same_weights(
    tmp_path: Path, num_micro_steps: int
) -> None:
    free, tight = (
        _calm_setup(tmp_path / name, num_micro_steps=num_micro_steps, ema_decay=0.9)
        for name in ("free", "tight")
    )
    tried = _limit(tight, 2)

    _train(free)
    events = _train(tight)

    first = 8 // num_micro_steps
    assert tried[: 4 - num_micro_steps] == [first, first // 2, 2][: 4 - num_micro_steps]
    assert [event.parts for event in _adapted(events)] == [2, 4][: 3 - num_micro_steps]
    steps = free.config.training.steps or 0
    for name, value in free.model.state_dict().items():
        error = float((tight.model.state_dict()[name] - value).abs().max())
        assert error < 1e-6 * steps, name


@pytest.mark.fault("E5")
def test_what_failed_leaves_no_trace_in_running_statistics(tmp_path: Path) -> None:
    free, tight = (
        make_setup(tmp_path / name, num_micro_steps=n) for name, n in (("a", 2), ("b", 1))
    )
    _limit(tight, 4)
    for state in (free, tight):
        OomGuard(state, lambda event: None).run(1, lambda state=state: train_step(state, 1))

    for name, value in free.model.state_dict().items():
        assert torch.equal(value, tight.model.state_dict()[name]), name


@pytest.mark.fault("E5")
def test_the_pieces_are_remembered_by_the_log_and_told_on_the_curve(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    state = make_setup(tmp_path / "run")
    _limit(state, 4)
    events = _train(state)
    for event in events:
        log.append(event)
    series = MetricStore(log)
    series.update()
    resumed = make_setup(tmp_path / "again")
    tried = _limit(resumed, 4)

    restore_adaptation(resumed, series.adapted)
    train_step(resumed, 1)

    notices = [event for event in events if isinstance(event, Notice)]
    assert [(notice.step, notice.level) for notice in notices] == [(1, "warning")]
    assert "split into 2 parts" in notices[0].text
    assert tried == [4, 4]


@pytest.mark.fault("E5")
def test_validation_that_does_not_fit_is_done_again_in_pieces(tmp_path: Path) -> None:
    free, tight = (make_setup(tmp_path / name) for name in ("free", "tight"))
    _limit(tight, 2, while_training=False)

    losses = [
        [
            e.metrics["val/loss"]
            for e in _train(state)
            if hasattr(e, "metrics") and "val/loss" in e.metrics
        ]
        for state in (free, tight)
    ]

    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5)


@pytest.mark.fault("E5")
def test_single_clips_that_do_not_fit_turn_checkpointing_on_and_then_end_with_numbers(
    tmp_path: Path,
) -> None:
    state = make_setup(tmp_path)
    _limit(state, 0)
    events: list[Event] = []

    with pytest.raises(OutOfMemory, match="one clip.*1.0 GiB.*4.0 s") as stopped:
        train(state, events.append)

    assert [(e.parts, e.checkpointing) for e in _adapted(events)] == [
        (2, False), (4, False), (8, False), (8, True),
    ]  # fmt: skip
    assert stopped.value.exit_code == 20
    assert state.model.inner.checkpointing == "full"  # type: ignore[union-attr]


@pytest.mark.fault("E5")
def test_an_optimizer_that_ran_out_of_memory_midway_starts_from_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_setup(tmp_path)
    events: list[Event] = []

    def fail(*arguments: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(state.optimizer, "step", fail)
    with pytest.raises(RestartFromCheckpoint):
        train(state, events.append)

    assert [event.parts for event in _adapted(events)] == [2]


def test_the_largest_micro_batch_is_tried_before_the_first_step(tmp_path: Path) -> None:
    state = make_setup(tmp_path)
    tried = _limit(state, 4)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    events: list[Event] = []

    OomGuard(state, events.append).probe_largest()

    assert tried[:2] == [8, 4]
    assert [(event.step, event.parts) for event in _adapted(events)] == [(0, 2)]
    for name, value in state.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_preview_that_does_not_fit_is_a_notice(tmp_path: Path) -> None:
    def speak(*arguments: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    state = make_setup(tmp_path, steps=2)
    state.family = replace(state.family, synthesize=speak)
    state.preview_every = Cadence(2)

    events = _train(state)

    assert not [event for event in events if isinstance(event, PreviewMade)]
    assert [e.text for e in events if isinstance(e, Notice)] == [
        "No preview was made: out of memory."
    ]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), True),
        (RuntimeError("cuBLAS error: CUBLAS_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_counts_as_memory_that_ran_out(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected

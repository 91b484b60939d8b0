"""Saving beside training: the same checkpoint, told when it is there, and no failure ends a run."""

import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from tests.helpers.toy import make_setup
from trainer.checkpoints import async_writer, checkpoint
from trainer.checkpoints.async_writer import CheckpointWriter
from trainer.checkpoints.checkpoint import newest_checkpoint, save_checkpoint
from trainer.checkpoints.staging import Staging
from trainer.core.errors import CheckpointError
from trainer.core.events import CheckpointSaved, Event, Notice
from trainer.core.train_state import TrainState
from trainer.training.loop import train, train_step


class Gate:
    """Holds back every export until it is opened, and counts how many are under way at once."""

    def __init__(self, state: TrainState) -> None:
        self.is_open = threading.Event()
        self.entered = threading.Event()
        self.now, self.most = 0, 0
        export = state.family.export

        def held(*arguments: object) -> None:
            self.now += 1
            self.most = max(self.most, self.now)
            self.entered.set()
            assert self.is_open.wait(timeout=120)
            export(*arguments)  # type: ignore[arg-type]
            self.now -= 1

        state.family = replace(state.family, export=held)


@pytest.fixture
def fail_writing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[int]]]:
    """Let the next writes fail with given errors; the list it returns takes the steps tried."""

    def arm(*errors: Exception) -> list[int]:
        tried: list[int] = []
        waiting = list(errors)
        real = checkpoint.write_snapshot

        def write(state: TrainState, snapshot: checkpoint.Snapshot) -> CheckpointSaved:
            tried.append(snapshot.step)
            if waiting:
                raise waiting.pop(0)
            return real(state, snapshot)

        monkeypatch.setattr(async_writer, "write_snapshot", write)
        return tried

    yield arm


def test_what_is_written_is_the_state_at_the_save_however_far_training_went_on(
    tmp_path: Path,
) -> None:
    held, prompt = (
        make_setup(tmp_path / name, optimizer="schedule_free_adamw") for name in ("held", "prompt")
    )
    gate = Gate(held)
    events: list[Event] = []
    for state in (held, prompt):
        train_step(state, 1)

    with CheckpointWriter(held, events.append) as saving:
        saving.save(1, best=False)
        for step in (2, 3, 4):
            train_step(held, step)
        gate.is_open.set()
    folders = [tmp_path / "held/checkpoints/step-00000001"]
    folders.append(tmp_path / "prompt" / save_checkpoint(prompt, 1, best=False).path)

    weights = [load_file(folder / "model.safetensors") for folder in folders]
    states = [torch.load(folder / "state.pt", weights_only=True) for folder in folders]
    assert _values(weights[0]) == _values(weights[1])
    assert _values(states[0]) == _values(states[1])


def _values(value: object) -> object:
    """Turn tensors into bytes, so that nested states compare bit by bit."""
    if isinstance(value, torch.Tensor):
        return value.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {key: _values(item) for key, item in value.items() if key != "trained_s"}
    return [_values(item) for item in value] if isinstance(value, list | tuple) else value


def test_a_save_is_told_when_it_is_published_and_not_before(tmp_path: Path) -> None:
    state = make_setup(tmp_path)
    gate = Gate(state)
    events: list[Event] = []

    with CheckpointWriter(state, events.append) as saving:
        saving.save(1, best=False)
        assert gate.entered.wait(timeout=120)
        saving.report_finished()
        before = list(events), newest_checkpoint(tmp_path / "checkpoints")
        gate.is_open.set()

    assert before == ([], (None, []))
    assert [type(event) for event in events] == [CheckpointSaved]
    assert newest_checkpoint(tmp_path / "checkpoints")[0] is not None


def test_memory_that_runs_out_while_the_state_is_copied_is_asked_for_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_setup(tmp_path, ema_decay=0.9)
    events: list[Event] = []
    full, real = [torch.OutOfMemoryError("CUDA out of memory.")], async_writer.take_snapshot

    def take(*arguments: Any, **named: Any) -> checkpoint.Snapshot:
        if full:
            raise full.pop()
        return real(*arguments, **named)

    monkeypatch.setattr(async_writer, "take_snapshot", take)
    with CheckpointWriter(state, events.append) as saving:
        saving.save(1, best=False)

    assert [type(event) for event in events] == [CheckpointSaved]


def test_saves_come_one_at_a_time_and_all_of_them(tmp_path: Path) -> None:
    state = make_setup(tmp_path, keep_last=9)
    gate = Gate(state)
    gate.is_open.set()
    events: list[Event] = []

    with CheckpointWriter(state, events.append) as saving:
        for step in (1, 2, 3):
            saving.save(step, best=False)

    assert gate.most == 1
    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [1, 2, 3]


def test_a_run_whose_loss_breaks_still_publishes_the_save_under_way(tmp_path: Path) -> None:
    state = make_setup(tmp_path)
    events: list[Event] = []

    with pytest.raises(ZeroDivisionError), CheckpointWriter(state, events.append) as saving:
        saving.save(1, best=False)
        raise ZeroDivisionError

    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [1]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EIO, "Input/output error"),
        RuntimeError("[enforce fail at inline_container.cc:603] . unexpected pos 64 vs 0"),
        SafetensorError("Error while serializing: I/O error: Read-only file system (os error 30)"),
    ],
)
def test_a_save_that_fails_is_a_notice_and_training_goes_on(
    tmp_path: Path, fail_writing: Callable[..., list[int]], error: Exception
) -> None:
    state = make_setup(tmp_path, steps=12)
    tried = fail_writing(error)
    events: list[Event] = []

    outcome = train(state, events.append)

    notices = [event for event in events if isinstance(event, Notice)]
    assert outcome == "finished"
    assert tried == [4, 8, 12]
    assert [event.step for event in notices] == [4]
    assert "step 4 could not be saved" in notices[0].text
    assert "can be written" in notices[0].remedy
    assert [e.step for e in events if isinstance(e, CheckpointSaved)] == [8, 12]


@pytest.mark.fault("B1")
def test_a_full_disk_costs_older_checkpoints_before_the_newest(
    tmp_path: Path, fail_writing: Callable[..., list[int]]
) -> None:
    state = make_setup(tmp_path, keep_last=9)
    for step in (1, 2, 3):
        save_checkpoint(state, step, best=step == 1)
    tried = fail_writing(OSError(errno.ENOSPC, "No space left on device"))
    events: list[Event] = []

    with CheckpointWriter(state, events.append) as saving:
        saving.save(4, best=False)

    kept = sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir())
    assert tried == [4, 4]
    assert kept == ["step-00000001", "step-00000003", "step-00000004"]
    assert [type(event) for event in events] == [CheckpointSaved, Notice]
    assert "Free space" in events[1].remedy  # type: ignore[attr-defined]


@pytest.mark.fault("B1")
def test_a_disk_that_stays_full_leaves_the_older_checkpoint_and_says_how_much_to_free(
    tmp_path: Path, fail_writing: Callable[..., list[int]]
) -> None:
    state = make_setup(tmp_path)
    older = tmp_path / save_checkpoint(state, 1, best=False).path
    full = [OSError(errno.ENOSPC, "No space left on device") for _ in range(2)]
    tried = fail_writing(*full)
    events: list[Event] = []

    with CheckpointWriter(state, events.append) as saving:
        saving.save(2, best=False)

    assert tried == [2, 2]
    assert newest_checkpoint(tmp_path / "checkpoints") == (older, [])
    assert "No space left" in events[0].text  # type: ignore[attr-defined]
    assert "The checkpoint of step 1 is intact" in events[0].text  # type: ignore[attr-defined]
    assert "GiB" in events[0].remedy  # type: ignore[attr-defined]


def test_the_last_save_of_a_run_may_not_fail_unheard(
    tmp_path: Path, fail_writing: Callable[..., list[int]]
) -> None:
    state = make_setup(tmp_path, steps=3)
    fail_writing(OSError(errno.EIO, "Input/output error"))

    with pytest.raises(CheckpointError, match="step 3 could not be saved: .*Input/output"):
        train(state, lambda event: None)


@pytest.mark.fault("B1")
def test_a_real_full_disk_is_recognised_through_torch_and_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_setup(tmp_path)
    older = tmp_path / save_checkpoint(state, 1, best=False).path
    events: list[Event] = []

    def to_full_device(content: object, path: Path) -> None:
        with open("/dev/full", "wb", buffering=0) as file:
            file.write(bytes(1000))

    monkeypatch.setattr(checkpoint.torch, "save", to_full_device)
    with CheckpointWriter(state, events.append) as saving:
        saving.save(2, best=False)

    assert [type(event) for event in events] == [Notice]
    assert "No space left" in events[0].text  # type: ignore[attr-defined]
    assert [folder for folder in (tmp_path / "checkpoints").iterdir()] == [older]


def test_staged_copies_are_their_own_and_use_the_same_memory_again() -> None:
    staging = Staging(torch.device("cpu"))
    live = {"a": torch.arange(6.0).view(2, 3).t(), "b": [torch.tensor(1), "name"], "c": (2, None)}

    first = staging.copy(live, "state")
    address = first["a"].data_ptr()
    live["a"].add_(1)
    unchanged = first["a"].tolist()
    second = staging.copy(live, "state")

    assert unchanged == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert second["a"].data_ptr() == address
    assert second["a"].tolist() == live["a"].tolist()
    assert (second["b"][1], second["c"]) == ("name", (2, None))


def test_state_that_grows_or_changes_its_type_gets_new_memory() -> None:
    staging = Staging(torch.device("cpu"))

    staging.copy({"a": torch.zeros(2)}, "state")
    grown = staging.copy({"a": torch.ones(3, dtype=torch.float64)}, "state")

    assert grown["a"].dtype == torch.float64
    assert grown["a"].tolist() == [1.0, 1.0, 1.0]


def test_a_staged_copy_in_half_precision_keeps_its_bits() -> None:
    values = torch.tensor([1.0, float("nan"), -0.0, 3e-8], dtype=torch.bfloat16)

    staged = Staging(torch.device("cpu")).copy(values, "weights")

    assert torch.equal(staged.view(torch.int16), values.view(torch.int16))

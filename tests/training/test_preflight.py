"""Room: a run that cannot fit is refused with numbers; a disk that fills later costs no event."""

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.toy import make_setup
from trainer import Run, RunConfig
from trainer.checkpoints.checkpoint import save_checkpoint
from trainer.core.events import MOST_WAITING, Event, EventLog, Notice, Publisher, StepDone
from trainer.core.train_state import Cadence
from trainer.training import preflight
from trainer.training.preflight import InsufficientResources, check_resources, checkpoint_bytes
from trainer.worker.event_writer import EventWriter


@pytest.mark.fault("B3")
def test_a_disk_too_small_for_the_checkpoints_is_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_setup(tmp_path)
    state.save_every = Cadence(minutes=1)
    monkeypatch.setattr(preflight, "checkpoint_bytes", lambda state: 2 * 2**30)
    monkeypatch.setattr(preflight, "free_disk_gib", lambda path: 10.9)

    with pytest.raises(
        InsufficientResources, match=r"10.90 GiB free, .* 11.00 GiB: 5 checkpoints of 2.00 GiB"
    ):
        check_resources(state)
    monkeypatch.setattr(preflight, "free_disk_gib", lambda path: 11.1)
    check_resources(state)


@pytest.mark.fault("B3")
def test_who_insists_is_not_refused_and_few_saves_need_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_setup(tmp_path, steps=10)
    state.save_every = Cadence(steps=10)
    monkeypatch.setattr(preflight, "checkpoint_bytes", lambda state: 2**30)
    monkeypatch.setattr(preflight, "free_disk_gib", lambda path: 1.0)
    training = replace(state.config.training, check_room=False)
    insisting = replace(state, config=state.config.with_values(training=training))

    check_resources(insisting)
    with pytest.raises(InsufficientResources, match="2 checkpoints of 1.00 GiB"):
        check_resources(state)


def test_weights_that_exceed_the_memory_are_told_with_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_setup(tmp_path)
    tiny = SimpleNamespace(total=100)
    monkeypatch.setattr(preflight.psutil, "virtual_memory", lambda: tiny)

    with pytest.raises(
        InsufficientResources, match="weights .*, gradients .*, optimizer .*Tick LoRA"
    ):
        check_resources(state)


def test_the_size_of_a_checkpoint_is_foreseen(tmp_path: Path) -> None:
    state = make_setup(tmp_path)

    foreseen = checkpoint_bytes(state)
    saved = save_checkpoint(state, 1, best=False)
    tensors = sum(value.nbytes for value in state.model.state_dict().values())

    assert tensors < foreseen < saved.size_bytes
    assert checkpoint_bytes(state) == saved.size_bytes


class _Disk:
    """A disk that can be full: `os` and files of it fail as the system does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        real: Callable[..., Any] = EventLog._write_waiting

        def write(log: EventLog) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            real(log)

        monkeypatch.setattr(EventLog, "_write_waiting", write)


@pytest.mark.fault("B2")
def test_events_wait_for_a_full_disk_older_checkpoints_make_room_and_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    state = make_setup(run.folder)
    for step in (1, 2, 3):
        save_checkpoint(state, step, best=False)
    disk = _Disk(monkeypatch)
    heard: list[Event] = []
    tell = Publisher(EventWriter(run), heard.append)

    tell(StepDone(1, {}))
    disk.is_full = True
    tell(StepDone(2, {}))
    tell(StepDone(3, {}))
    disk.is_full = False
    tell(StepDone(4, {}))

    told = [logged.event for logged in run.events.follow()]
    assert [event.step for event in told if isinstance(event, StepDone)] == [1, 2, 3, 4]
    assert isinstance(told[-1], Notice) and "2 events waited in memory" in told[-1].text
    assert heard == told
    assert [info.step for info in run.checkpoints()] == [3]


@pytest.mark.fault("B2")
def test_events_that_wait_take_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.path.touch()
    log._waiting = [b"{}\n"] * MOST_WAITING
    disk = _Disk(monkeypatch)
    disk.is_full = True

    log.append(StepDone(1, {}))

    assert (log.num_waiting, log.num_lost) == (MOST_WAITING, 1)


@pytest.mark.fault("B2")
def test_a_page_is_told_that_the_disk_is_full_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    lock = run.take()
    monkeypatch.setattr("trainer.runs.status.free_disk_gib", lambda path: 0.001)

    status = run.status()
    lock.release()

    assert status.is_active
    assert "is full" in status.reason

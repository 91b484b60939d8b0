"""Memory that runs out for reasons outside the run: its order after hours, or other programs."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

from tests.helpers.toy import make_setup
from trainer.__main__ import enable_expandable_segments
from trainer.checkpoints.checkpoint import newest_step
from trainer.core.device import Device, GpuProcess, list_gpu_processes
from trainer.core.errors import MemoryFragmented
from trainer.core.events import CheckpointSaved, Event, Notice, RunAdapted, StepDone
from trainer.core.train_state import TrainState
from trainer.runs.restart_policy import RESTARTABLE, Ending
from trainer.training import oom_diagnosis, oom_recovery
from trainer.training.loop import train
from trainer.training.oom_diagnosis import OomDiagnosis
from trainer.training.oom_recovery import OomGuard, OutOfMemory, restore_adaptation

GPU = Device("cuda", 0, "A GPU", 24.0, (8, 9))
IN_PIECES = OomDiagnosis(reserved_gib=20.0, allocated_gib=14.0)
FULL = OomDiagnosis(reserved_gib=20.0, allocated_gib=19.5)
BLENDER = GpuProcess(4242, "blender", 9.1)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let allocator and driver say this, one after the other; the last for ever."""

    def prepare(*answers: OomDiagnosis) -> None:
        left = list(answers)

        def read(state: TrainState) -> OomDiagnosis:
            return left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(oom_recovery, "diagnose_oom", read)
        monkeypatch.setattr(oom_diagnosis, "diagnose_oom", read)

    return prepare


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let time pass at once; the list takes what would have been slept."""
    slept: list[float] = []
    # Not in the module `time` itself, by which other threads of this process sleep.
    clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr(oom_diagnosis, "time", clock)
    return slept


def _fail_at(state: TrainState, *calls: int) -> None:
    """Run out of memory at these passes over a batch, counted from 1."""
    losses = state.family.losses
    count = 0

    def limited(model: Any, batch: Any) -> dict[str, Tensor]:
        nonlocal count
        count += torch.is_grad_enabled()
        if count in calls:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return losses(model, batch)

    state.family = replace(state.family, losses=limited)


def _kinds(events: list[Event], kind: type) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


@pytest.mark.fault("E6")
def test_after_many_steps_memory_in_pieces_saves_and_asks_for_a_new_process(
    tmp_path: Path, say: Callable[..., None]
) -> None:
    state = make_setup(tmp_path, steps=70)
    say(OomDiagnosis(), IN_PIECES)
    _fail_at(state, 60)
    events: list[Event] = []

    with pytest.raises(MemoryFragmented, match="6.0 GiB of the 20.0 GiB") as ended:
        train(state, events.append)

    assert Ending(ended.value.exit_code).may_restart and ended.value.exit_code == RESTARTABLE
    assert newest_step(state.folder / "checkpoints") == 59
    assert _kinds(events, CheckpointSaved)[-1].step == 59
    assert [event.step for event in _kinds(events, StepDone)][-1] == 59
    assert [event.regrouped for event in _kinds(events, RunAdapted)] == [1]
    assert "saved" in _kinds(events, Notice)[-1].remedy


@pytest.mark.fault("E6")
@pytest.mark.parametrize(
    ("call", "said", "regrouped"), [(20, IN_PIECES, 0), (60, FULL, 0), (60, IN_PIECES, 1)]
)
def test_a_new_process_is_asked_for_once_and_only_where_it_helps(
    tmp_path: Path, say: Callable[..., None], call: int, said: OomDiagnosis, regrouped: int
) -> None:
    state = make_setup(tmp_path, steps=62)
    restore_adaptation(state, RunAdapted(0, "", regrouped=regrouped))
    say(OomDiagnosis(), said)
    _fail_at(state, call)
    events: list[Event] = []

    assert train(state, events.append) == "finished"

    assert [event.parts for event in _kinds(events, RunAdapted)] == [2]


@pytest.mark.fault("E6")
@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_segments_grow_unless_a_person_chose_otherwise(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for each in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")

    enable_expandable_segments()

    assert os.environ.pop("PYTORCH_ALLOC_CONF") == "expandable_segments:True"
    monkeypatch.setenv(name, "max_split_size_mb:128")
    enable_expandable_segments()
    assert {os.environ.get(n) for n in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")} == {
        "max_split_size_mb:128",
        None,
    }


@pytest.mark.fault("E7")
def test_a_program_that_takes_memory_is_named_and_waited_for(
    tmp_path: Path, say: Callable[..., None], naps: list[float]
) -> None:
    state = make_setup(tmp_path, steps=6)
    calm = make_setup(tmp_path / "calm", steps=6)
    taken = OomDiagnosis(20.0, 19.5, (BLENDER,))
    say(OomDiagnosis(), taken, taken, taken, OomDiagnosis())
    _fail_at(state, 3)
    events: list[Event] = []

    assert train(state, events.append) == "finished"

    notices = _kinds(events, Notice)
    assert len(notices) == 1 and "blender (pid 4242) 9.1 GiB" in notices[0].text
    assert 0 < sum(naps) < 5
    assert _kinds(events, RunAdapted) == []
    train(calm, lambda event: None)
    for value, same in zip(
        state.model.state_dict().values(), calm.model.state_dict().values(), strict=True
    ):
        assert torch.equal(value, same)


@pytest.mark.fault("E7")
def test_a_program_that_stays_is_waited_for_three_times_and_then_pieces_get_smaller(
    tmp_path: Path, say: Callable[..., None], naps: list[float]
) -> None:
    state = make_setup(tmp_path, steps=6)
    say(OomDiagnosis(), OomDiagnosis(20.0, 19.5, (BLENDER,)))
    _fail_at(state, 3, 4, 5, 6)
    events: list[Event] = []

    assert train(state, events.append) == "finished"

    assert sum(naps) == pytest.approx(sum(oom_diagnosis.WAITS_S))
    assert [event.parts for event in _kinds(events, RunAdapted)] == [2]
    assert "blender (pid 4242)" in _kinds(events, Notice)[-1].text


@pytest.mark.fault("E7")
def test_what_was_there_at_the_start_is_named_but_not_waited_for(
    tmp_path: Path, say: Callable[..., None], naps: list[float]
) -> None:
    state = make_setup(tmp_path)
    say(OomDiagnosis(20.0, 19.5, (BLENDER,)))

    def deed() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(OutOfMemory, match=r"blender \(pid 4242\) 9.1 GiB"):
        OomGuard(state, lambda event: None).run(1, deed)

    assert naps == []


@pytest.mark.fault("E7")
def test_a_stop_ends_the_wait(tmp_path: Path, say: Callable[..., None], naps: list[float]) -> None:
    state = make_setup(tmp_path, steps=6)
    (state.folder / "control").mkdir(parents=True, exist_ok=True)
    (state.folder / "control" / "stop").touch()
    say(OomDiagnosis(), OomDiagnosis(20.0, 19.5, (BLENDER,)))
    _fail_at(state, 1)

    train(state, lambda event: None)

    assert naps == []


@pytest.mark.fault("E7")
def test_the_driver_is_asked_for_all_programs_but_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NVMLError(Exception):
        pass

    fake: Any = ModuleType("pynvml")
    fake.NVMLError = NVMLError
    fake.nvmlInit = lambda: None
    fake.nvmlDeviceGetHandleByIndex = lambda index: index
    parent = os.getppid()
    fake.nvmlDeviceGetComputeRunningProcesses = lambda handle: [
        SimpleNamespace(pid=os.getpid(), usedGpuMemory=2**30),
        SimpleNamespace(pid=parent, usedGpuMemory=2**29),
        SimpleNamespace(pid=2**22 + 5, usedGpuMemory=2**31),
    ]
    fake.nvmlDeviceGetGraphicsRunningProcesses = lambda handle: [
        SimpleNamespace(pid=parent, usedGpuMemory=2**29),
        SimpleNamespace(pid=1, usedGpuMemory=None),
    ]
    monkeypatch.setitem(sys.modules, "pynvml", fake)

    found = list_gpu_processes(GPU)

    assert found == [
        GpuProcess(2**22 + 5, "a program", 2.0),
        GpuProcess(parent, psutil.Process(parent).name(), 0.5),
    ]

    def fail(handle: int) -> None:
        raise NVMLError("not supported")

    monkeypatch.setattr(fake, "nvmlDeviceGetComputeRunningProcesses", fail)
    assert list_gpu_processes(GPU) == []

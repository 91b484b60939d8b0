"""What driver and torch tell of GPUs, whichever numbers they give them and whatever they lack."""

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.checkpoints.staging import Staging
from trainer.core.child_process import PROJECT
from trainer.core.device import (
    GIB,
    Device,
    DeviceUse,
    describe_cpu,
    list_devices,
    list_gpu_processes,
    read_use_or_none,
)
from trainer.training.device import take_device, warn_unseen_gpu
from trainer.worker.training_process import explain_failure


class NVMLError(Exception):
    """The driver's refusal, with its number."""

    def __init__(self, value: int) -> None:
        super().__init__(str(value))
        self.value = value


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A driver with two GPUs, known by their numbers and as GPU-first and MIG-second."""
    handles = {"GPU-first": 0, "MIG-second": 1}

    def by_uuid(uuid: str) -> int:
        if uuid not in handles:
            raise NVMLError(6)
        return handles[uuid]

    fake: Any = ModuleType("pynvml")
    fake.NVMLError, fake.NVML_ERROR_NOT_SUPPORTED, fake.NVML_TEMPERATURE_GPU = NVMLError, 3, 0
    fake.nvmlInit = lambda: None
    fake.nvmlDeviceGetCount = lambda: 2
    fake.nvmlDeviceGetHandleByIndex = lambda index: index
    fake.nvmlDeviceGetHandleByUUID = by_uuid
    fake.nvmlDeviceGetName = lambda handle: f"GPU {handle}"
    fake.nvmlDeviceGetCudaComputeCapability = lambda handle: (8, 9)
    fake.nvmlDeviceGetMemoryInfo = lambda handle: SimpleNamespace(
        used=(handle + 1) * GIB, total=24 * GIB
    )
    fake.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(gpu=50 + handle)
    fake.nvmlDeviceGetTemperature = lambda handle, sensor: 60 + handle
    fake.nvmlDeviceGetComputeRunningProcesses = lambda handle: [
        SimpleNamespace(pid=2**22 + handle, usedGpuMemory=GIB)
    ]
    fake.nvmlDeviceGetGraphicsRunningProcesses = lambda handle: []
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def _refuse(value: int) -> Any:
    def refuse(*args: Any) -> None:
        raise NVMLError(value)

    return refuse


@pytest.mark.parametrize(("uuid", "number"), [("first", 0), ("second", 1), ("gone", 0), ("", 0)])
def test_the_gpu_that_torch_means_is_asked(driver: Any, uuid: str, number: int) -> None:
    seen_as_first = Device("cuda", 0, "a GPU", 24.0, (8, 9), uuid)

    use, holders = read_use_or_none(seen_as_first), list_gpu_processes(seen_as_first)

    assert use == DeviceUse(number + 1.0, 24.0, 50.0 + number, 60.0 + number)
    assert [holder.pid for holder in holders] == [2**22 + number]


def test_what_a_part_of_a_gpu_does_not_tell_hides_nothing_else(driver: Any) -> None:
    driver.nvmlDeviceGetUtilizationRates = driver.nvmlDeviceGetTemperature = _refuse(3)

    assert read_use_or_none(Device("cuda", 1, "a GPU", 24.0)) == DeviceUse(2.0, 24.0)


def test_a_gpu_without_memory_of_its_own_has_the_hosts(driver: Any) -> None:
    driver.nvmlDeviceGetMemoryInfo = _refuse(3)

    found = list_devices()

    assert [device.torch_name for device in found] == ["cuda:0", "cuda:1", "cpu"]
    assert found[0].memory_gib == psutil.virtual_memory().total / GIB


def test_a_lost_gpu_hides_no_other(driver: Any) -> None:
    known = driver.nvmlDeviceGetHandleByIndex
    driver.nvmlDeviceGetHandleByIndex = lambda index: known(index) if index else _refuse(15)()

    assert [device.torch_name for device in list_devices()] == ["cuda:1", "cpu"]
    assert read_use_or_none(Device("cuda", 0, "a GPU", 24.0)) is None


@pytest.mark.parametrize(("wanted", "rank", "current"), [("cuda:1", 0, [1]), ("auto", 1, [1])])
def test_what_a_run_trains_on_is_torchs_current_gpu(
    wanted: str, rank: int, current: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    gpus = [Device("cuda", index, "a GPU", 24.0, (8, 9)) for index in range(2)]
    monkeypatch.setattr("trainer.training.device._torch_gpus", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)

    assert take_device(wanted, rank) == gpus[1]
    assert take_device("cpu").kind == "cpu"
    assert taken == current


@pytest.mark.parametrize(("cuda", "word"), [("13.0", "newer driver"), (None, "without CUDA")])
def test_a_gpu_that_torch_does_not_see_is_told(
    driver: Any, cuda: str | None, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(torch.version, "cuda", cuda)

    warn_unseen_gpu("auto", describe_cpu(), told.append)
    warn_unseen_gpu("cpu", describe_cpu(), told.append)

    assert [event.level for event in told] == ["warning"]
    assert "does not see the GPU 0." in told[0].text
    assert word in told[0].remedy


def test_a_gpu_that_torch_has_no_code_for_needs_a_person() -> None:
    error = RuntimeError("CUDA error: no kernel image is available for execution on the device")

    reason, remedy, code = explain_failure(error)

    assert code == 20
    assert "has no code for the GPU" in reason
    assert "Install a PyTorch" in remedy


def test_where_no_memory_can_be_locked_usual_memory_takes_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []
    plainly = torch.empty_like

    def refuse(value: torch.Tensor, *, device: str, pin_memory: bool = False) -> torch.Tensor:
        asked.append(pin_memory)
        if pin_memory:
            raise torch.AcceleratorError("CUDA error: out of memory")
        return plainly(value, device="meta")

    monkeypatch.setattr(torch, "empty_like", refuse)
    staging = Staging(torch.device("cuda"))
    with FakeTensorMode():
        values = [torch.ones(2, device="cuda"), torch.ones(3, device="cuda")]

        made = [staging._make_buffer(value) for value in values]

    assert [value.shape for value in made] == [(2,), (3,)]
    assert asked == [True, False, False]


def test_the_size_of_a_gib_is_written_once() -> None:
    spelled = re.compile(r"\b(2 ?\*\* ?[23]0|1024 ?\*\* ?[23]|1 << [23]0)\b")
    allowed = {
        "trainer/core/device.py": "defines them",
        "trainer/safe_unpickle/child.py": "runs by itself, without the package",
        "trainer/optimizers/_core/param_table.py": "counts entries, not bytes",
        "trainer/optimizers/kron.py": "counts weights, not bytes",
    }

    found = {
        path.relative_to(PROJECT).as_posix()
        for folder in ("trainer", "webui")
        for path in (PROJECT / folder).rglob("*.py")
        if spelled.search(path.read_text("utf-8"))
    }

    assert found <= set(allowed)
    assert "trainer/core/device.py" in found

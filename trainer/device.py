"""Device: facts about this machine's GPUs and CPU, from NVML and psutil; torch is not touched."""

import os
import platform
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_GIB = 1024**3


@dataclass(frozen=True)
class Device:
    """One place to train on. `kind` is `cpu` or `cuda`; `capability` is (0, 0) on a CPU.

    `index` is torch's where torch named it, and `uuid` then tells the driver which GPU is meant:
    CUDA_VISIBLE_DEVICES hides some from torch, and the driver counts them all.
    """

    kind: str
    index: int
    name: str
    memory_gib: float
    capability: tuple[int, int] = (0, 0)
    uuid: str = ""

    @property
    def torch_name(self) -> str:
        """The name torch gives it: `cpu` or `cuda:0`."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def has_bf16(self) -> bool:
        """Whether bf16 runs here: compute capability 8.0, or any CPU (some emulate it)."""
        return self.kind == "cpu" or self.capability >= (8, 0)

    @property
    def has_tf32(self) -> bool:
        """Whether the tensor cores know TF32 (compute capability 8.0)."""
        return self.kind == "cuda" and self.capability >= (8, 0)


@dataclass(frozen=True)
class DeviceUse:
    """What a device does right now; None where the driver does not tell."""

    memory_used_gib: float
    memory_total_gib: float
    utilisation_percent: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True)
class Holder:
    """Another program that holds memory of a GPU."""

    pid: int
    name: str
    memory_gib: float


def list_devices() -> list[Device]:
    """List the GPUs the driver knows, then the CPU."""
    return [*_list_gpus(), describe_cpu()]


def describe_cpu() -> Device:
    """Describe the host processor."""
    count = psutil.cpu_count(logical=True) or 1
    name = _cpu_model() or platform.processor() or platform.machine()
    return Device("cpu", 0, f"{name} ({count} cores)", psutil.virtual_memory().total / _GIB)


def read_use(device: Device) -> DeviceUse:
    """Read memory, utilisation and temperature of a device."""
    if device.kind == "cpu":
        return DeviceUse(*_host_memory(), psutil.cpu_percent(interval=None))
    import pynvml

    handle = _handle_of(device)
    utilisation = temperature = None
    # A part of a GPU (MIG) tells neither.
    with suppress(pynvml.NVMLError):
        utilisation = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with suppress(pynvml.NVMLError):
        sensor = pynvml.NVML_TEMPERATURE_GPU
        temperature = float(pynvml.nvmlDeviceGetTemperature(handle, sensor))
    return DeviceUse(*_memory_of(handle), utilisation, temperature)


def _handle_of(device: Device) -> Any:
    """Return what the driver knows a GPU by."""
    import pynvml

    pynvml.nvmlInit()
    for kind in ("GPU", "MIG") if device.uuid else ():
        with suppress(pynvml.NVMLError):
            return pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{device.uuid}")
    return pynvml.nvmlDeviceGetHandleByIndex(device.index)


def _memory_of(handle: Any) -> tuple[float, float]:
    """Return the GiB of a GPU that are used, and all of them; it may share the host's memory."""
    import pynvml

    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        if getattr(error, "value", None) != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        return _host_memory()
    return float(memory.used) / _GIB, float(memory.total) / _GIB


def _host_memory() -> tuple[float, float]:
    memory = psutil.virtual_memory()
    return (memory.total - memory.available) / _GIB, memory.total / _GIB


def glance_at(device: Device) -> DeviceUse | None:
    """Return what a device does right now; None where no driver tells."""
    if device.kind == "cpu":
        return read_use(device)
    try:
        import pynvml
    except ImportError:
        return None
    try:
        return read_use(device)
    except pynvml.NVMLError:
        return None


def list_holders(device: Device) -> list[Holder]:
    """List the other programs that hold a GPU's memory, largest first, as far as the driver tells.

    Some drivers tell of no program, and in a container numbers may mean nothing.
    """
    if device.kind == "cpu":
        return []
    try:
        import pynvml
    except ImportError:
        return []
    try:
        handle = _handle_of(device)
        found = [
            *pynvml.nvmlDeviceGetComputeRunningProcesses(handle),
            *pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
        ]
    except pynvml.NVMLError:
        return []
    held = {each.pid: each.usedGpuMemory for each in found if each.usedGpuMemory}
    holders = [
        Holder(pid, _program_name(pid), used / _GIB)
        for pid, used in held.items()
        if pid != os.getpid()
    ]
    return sorted(holders, key=lambda holder: -holder.memory_gib)


def _program_name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "a program"


def free_disk_gib(path: Path) -> float:
    """Return the free space of the disk that holds a path (or its nearest existing parent)."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / _GIB


def _list_gpus() -> list[Device]:
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    gpus = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        # One that is lost must not hide the others.
        with suppress(pynvml.NVMLError):
            gpus.append(_describe_gpu(index))
    return gpus


def _describe_gpu(index: int) -> Device:
    import pynvml

    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    name, (_, total) = pynvml.nvmlDeviceGetName(handle), _memory_of(handle)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Device("cuda", index, str(name), total, (int(major), int(minor)))


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else ""

"""Device: facts about this machine's GPUs and CPU, from NVML and psutil; torch is not touched."""

import os
import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

_GIB = 1024**3


@dataclass(frozen=True)
class Device:
    """One place to train on. `kind` is `cpu` or `cuda`; `capability` is (0, 0) on a CPU."""

    kind: str
    index: int
    name: str
    memory_gib: float
    capability: tuple[int, int] = (0, 0)

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
        memory = psutil.virtual_memory()
        used = (memory.total - memory.available) / _GIB
        return DeviceUse(used, memory.total / _GIB, psutil.cpu_percent(interval=None))
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(device.index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    temperature = pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    used, total = float(memory.used) / _GIB, float(memory.total) / _GIB
    return DeviceUse(used, total, float(rates.gpu), float(temperature))


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
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(device.index)
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
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        name = pynvml.nvmlDeviceGetName(handle)
        total = float(pynvml.nvmlDeviceGetMemoryInfo(handle).total) / _GIB
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        gpus.append(Device("cuda", index, str(name), total, (int(major), int(minor))))
    return gpus


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else ""

"""Describe this machine's GPUs and CPU with NVML and psutil.

torch is not used, because the web process must not initialise CUDA: a context takes half a GiB of
GPU memory.
"""

import os
import platform
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

GIB, MIB = 2**30, 2**20
"""Bytes of a GiB and of a MiB."""


@dataclass(frozen=True)
class Device:
    """A device to train on. `kind` is `cpu` or `cuda`; `capability` is (0, 0) on a CPU.

    If torch listed the device, `index` is torch's and `uuid` identifies the GPU to the driver:
    CUDA_VISIBLE_DEVICES hides GPUs from torch, while the driver counts all of them.
    """

    kind: str
    index: int
    name: str
    memory_gib: float
    capability: tuple[int, int] = (0, 0)
    uuid: str = ""

    @property
    def torch_name(self) -> str:
        """torch's name of the device: `cpu` or `cuda:0`."""
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"

    @property
    def has_bf16(self) -> bool:
        """Whether bf16 works: compute capability 8.0 (Ampere) or any CPU (some emulate it)."""
        return self.kind == "cpu" or self.capability >= (8, 0)

    @property
    def has_tf32(self) -> bool:
        """Whether the tensor cores support TF32: compute capability 8.0 (Ampere)."""
        return self.kind == "cuda" and self.capability >= (8, 0)


@dataclass(frozen=True)
class DeviceUse:
    """The current load of a device; None for values that the driver does not report."""

    memory_used_gib: float
    memory_total_gib: float
    utilisation_percent: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True)
class GpuProcess:
    """Another program that uses memory of a GPU."""

    pid: int
    name: str
    memory_gib: float


def list_devices() -> list[Device]:
    """List the GPUs that the driver reports, then the CPU."""
    return [*_list_gpus(), describe_cpu()]


def describe_cpu() -> Device:
    """Describe the host processor."""
    count = psutil.cpu_count(logical=True) or 1
    name = _cpu_model() or platform.processor() or platform.machine()
    return Device("cpu", 0, f"{name} ({count} cores)", psutil.virtual_memory().total / GIB)


def read_use(device: Device) -> DeviceUse:
    """Read memory, utilisation and temperature of a device."""
    if device.kind == "cpu":
        # interval=None: the load since the last call, without waiting.
        return DeviceUse(*_host_memory(), psutil.cpu_percent(interval=None))
    import pynvml

    handle = _handle_of(device)
    utilisation = temperature = None
    # A partition of a GPU (MIG) reports neither of the two.
    with suppress(pynvml.NVMLError):
        utilisation = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    with suppress(pynvml.NVMLError):
        sensor = pynvml.NVML_TEMPERATURE_GPU
        temperature = float(pynvml.nvmlDeviceGetTemperature(handle, sensor))
    return DeviceUse(*_memory_of(handle), utilisation, temperature)


def _handle_of(device: Device) -> object:
    """Return the driver's handle of a GPU."""
    import pynvml

    pynvml.nvmlInit()
    # torch gives the UUID without its prefix, which differs for a whole GPU and a partition.
    for kind in ("GPU", "MIG") if device.uuid else ():
        with suppress(pynvml.NVMLError):
            return pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{device.uuid}")
    return pynvml.nvmlDeviceGetHandleByIndex(device.index)


def _memory_of(handle: object) -> tuple[float, float]:
    """Return the used and the total memory of a GPU in GiB."""
    import pynvml

    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError as error:
        if getattr(error, "value", None) != pynvml.NVML_ERROR_NOT_SUPPORTED:
            raise
        # GPUs that share the host's memory (Jetson, GB10) have no memory of their own to report.
        return _host_memory()
    return float(memory.used) / GIB, float(memory.total) / GIB


def _host_memory() -> tuple[float, float]:
    memory = psutil.virtual_memory()
    # Not `used`: caches that the system can drop at once count as available.
    return (memory.total - memory.available) / GIB, memory.total / GIB


def read_use_or_none(device: Device) -> DeviceUse | None:
    """Return the current load of a device; None if no driver reports it."""
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


def list_gpu_processes(device: Device) -> list[GpuProcess]:
    """List the other programs that use a GPU's memory, largest first, as the driver reports them.

    Some drivers report none, and inside a container the process ids may be those of the host.
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
    # A program that both computes and draws is in both lists; usedGpuMemory is None where the
    # driver does not know it.
    held = {each.pid: each.usedGpuMemory for each in found if each.usedGpuMemory}
    holders = [
        GpuProcess(pid, _program_name(pid), used / GIB)
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
    """Return the free GiB on the disk that holds a path or its nearest existing parent."""
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free / GIB


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
        # A GPU that has failed raises an error here and must not hide the others.
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
    # platform.processor() is empty or only says x86_64 on Linux.
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else ""

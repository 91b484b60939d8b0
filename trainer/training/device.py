"""Choose the device that a process trains on, in torch's numbering of the GPUs.

`trainer/core/device.py` describes devices without torch, for processes that must not load it.
"""

import torch

from trainer.core.device import GIB, Device, describe_cpu, list_devices
from trainer.core.errors import ConfigError
from trainer.core.events import Emit, Notice


def choose_device(wanted: str, local_rank: int = 0) -> Device:
    """Return the device that `auto`, `cpu`, `cuda` or `cuda:1` names on this machine.

    Raises:
        ConfigError: there is no such device.
    """
    gpus = _torch_gpus()
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return describe_cpu()
    names = {"auto": local_rank, "cuda": local_rank}
    names |= {gpu.torch_name: gpu.index for gpu in gpus}
    index = names.get(wanted, -1)
    if not 0 <= index < len(gpus):
        known = ", ".join(["auto", "cpu", *(gpu.torch_name for gpu in gpus)])
        why = "" if gpus else " torch does not see a GPU."
        raise ConfigError(f"This machine has no device '{wanted}'.{why} Use one of: {known}.")
    return gpus[index]


def take_device(wanted: str, local_rank: int = 0) -> Device:
    """Like `choose_device`, and make a GPU torch's current one in this process.

    CUDA events and calls without a device use the current GPU, whichever GPU the tensors are on.
    """
    machine = choose_device(wanted, local_rank)
    if machine.kind == "cuda":
        torch.cuda.set_device(machine.index)
    return machine


def warn_unseen_gpu(wanted: str, machine: Device, emit: Emit) -> None:
    """Warn if the driver reports a GPU that torch does not see, because the run will be slow."""
    if wanted != "auto" or machine.kind == "cuda":
        return
    gpus = [device for device in list_devices() if device.kind == "cuda"]
    if not gpus:
        return
    text = f"This run uses the CPU: torch {torch.__version__} does not see the {gpus[0].name}."
    built = "was built without CUDA; install a CUDA build (pytorch.org shows the command)"
    asks = "needs a newer driver, or CUDA_VISIBLE_DEVICES hides the GPU"
    remedy = f"This torch {asks if torch.version.cuda else built}."
    emit(Notice("warning", text, remedy))


def _torch_gpus() -> list[Device]:
    """List the GPUs in torch's numbering, which CUDA_VISIBLE_DEVICES may change."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = []
    for index in range(count):
        facts = torch.cuda.get_device_properties(index)
        memory_gib, capability = facts.total_memory / GIB, (facts.major, facts.minor)
        gpus.append(Device("cuda", index, facts.name, memory_gib, capability, str(facts.uuid)))
    return gpus

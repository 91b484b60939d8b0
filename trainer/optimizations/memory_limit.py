"""Limit the share of the GPU's memory that PyTorch's allocator may use."""

from dataclasses import dataclass

import torch

from trainer.core.device import Device
from trainer.core.options import option
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import Probe, TrainState


@dataclass(frozen=True)
class Options:
    """The options of the memory limit."""

    share: float = option(
        0.9,
        "Share of the GPU's memory",
        "0.9 leaves a tenth to the desktop and other programs. A run that needs more stops with an "
        "error instead of slowing everything else down.",
        min=0.01,
        max=1.0,
    )


def unavailable(device: Device) -> str | None:
    """Return why a device's memory cannot be limited, or None."""
    if device.kind == "cpu":
        return "Only the memory of a GPU can be limited; this run uses the CPU."
    return None


def apply(state: TrainState, options: Options) -> None:
    """Make PyTorch's allocator refuse allocations beyond the share."""
    # The fraction is of the total memory and applies to this process only; memory that the driver
    # and libraries allocate outside PyTorch's allocator is not covered.
    torch.cuda.set_per_process_memory_fraction(options.share, state.machine.index)


def status(state: TrainState, probe: Probe) -> OptimizationStatus:
    """Report the limit that PyTorch's allocator has."""
    reason = unavailable(state.machine)
    if reason is not None:
        return OptimizationStatus(False, reason)
    share = torch.cuda.get_per_process_memory_fraction(state.machine.index)
    # 1 is what PyTorch starts with, so it limits nothing.
    if share >= 1.0:
        return OptimizationStatus(False, f"all {state.machine.memory_gib:.1f} GiB may be used")
    limit = share * state.machine.memory_gib
    return OptimizationStatus(True, f"at most {limit:.1f} of {state.machine.memory_gib:.1f} GiB")


OPTIMIZATION = Optimization(
    name="memory_limit",
    label="Limit GPU memory",
    help="Reserves a share of the GPU's memory for other programs; the run cannot use it. The "
    "driver and PyTorch's libraries need about another half GiB.",
    stage="backend",
    exact=True,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    status=status,
)

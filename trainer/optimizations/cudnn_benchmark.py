"""cuDNN benchmark: every convolution runs with the kernel that was fastest when timed here.

Channels-last is no box of its own: PyTorch has that layout for images and volumes only, and the
convolutions of these models run along time.
"""

from dataclasses import dataclass

import torch

from trainer.core.device import Device
from trainer.core.options import option
from trainer.core.specs import Optimization, State
from trainer.core.train_state import Probe, Setup


@dataclass(frozen=True)
class Options:
    """The options of the cuDNN benchmark."""

    candidates: int = option(
        10,
        "Kernels tried",
        "How many kernels are timed for each new shape; 0 tries all there are.",
        min=0,
        max=100,
        folded=True,
    )


def unavailable(device: Device) -> str | None:
    """Return why a device has no cuDNN, or None."""
    if device.kind == "cpu":
        return "cuDNN is a library for NVIDIA GPUs; this run uses the CPU."
    return None


def apply(setup: Setup, options: Options) -> None:
    """Set torch's flags for this process."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = options.candidates


def state(setup: Setup, probe: Probe) -> State:
    """Tell whether kernels are timed, and for how many convolutions of a pass."""
    reason = unavailable(setup.machine)
    if reason is not None:
        return State(False, reason)
    num = sum(count for name, count in probe.operators.items() if "convolution" in name)
    if not num:
        return State(False, "this model computes no convolutions")
    if not torch.backends.cudnn.benchmark:
        return State(False, f"{num} convolutions by cuDNN's own choice of kernels")
    return State(True, f"{num} convolutions in a pass by the fastest of the kernels timed")


OPTIMIZATION = Optimization(
    name="cudnn_benchmark",
    label="Time cuDNN kernels",
    help="Tries several convolution kernels for every new shape and keeps the fastest: for models "
    "of convolutions such as FastSpeech 2. Every new length is timed anew, so it only pays in long "
    "runs; results differ within rounding.",
    stage="backend",
    exact=True,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    state=state,
)

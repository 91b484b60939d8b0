"""cuDNN benchmark: run each convolution with the kernel that was fastest on this machine.

There is no channels-last option, because PyTorch has that layout only for images and volumes, and
the convolutions of these models are one-dimensional.
"""

from dataclasses import dataclass

import torch

from trainer.core.device import Device
from trainer.core.options import option
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import Probe, TrainState


@dataclass(frozen=True)
class Options:
    """The options of the cuDNN benchmark."""

    # 10 is PyTorch's default for benchmark_limit.
    candidates: int = option(
        10,
        "Kernels tried",
        "How many kernels are timed for each new shape; 0 tries all of them.",
        min=0,
        max=100,
        advanced=True,
    )


def unavailable(device: Device) -> str | None:
    """Return why a device has no cuDNN, or None."""
    if device.kind == "cpu":
        return "cuDNN is a library for NVIDIA GPUs; this run uses the CPU."
    return None


def apply(state: TrainState, options: Options) -> None:
    """Set torch's flags for this process."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = options.candidates


def status(state: TrainState, probe: Probe) -> OptimizationStatus:
    """Report whether kernels are timed, and for how many convolutions per pass."""
    reason = unavailable(state.machine)
    if reason is not None:
        return OptimizationStatus(False, reason)
    # Counted from the operators of a real pass, since a model may have no convolutions at all.
    num = sum(count for name, count in probe.operators.items() if "convolution" in name)
    if not num:
        return OptimizationStatus(False, "this model computes no convolutions")
    # The flag belongs to the process, so other code may have changed it since `apply`.
    if not torch.backends.cudnn.benchmark:
        return OptimizationStatus(False, f"{num} convolutions with the kernels that cuDNN chose")
    return OptimizationStatus(
        True, f"{num} convolutions per pass with the fastest of the timed kernels"
    )


OPTIMIZATION = Optimization(
    name="cudnn_benchmark",
    label="Time cuDNN kernels",
    help="Tries several convolution kernels for each new shape and keeps the fastest; for "
    "convolutional models such as FastSpeech 2. Every new length is timed, so it only pays off in "
    "long runs. Results differ only by rounding.",
    stage="backend",
    exact=True,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    status=status,
)

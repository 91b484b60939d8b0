"""TF32: fp32 matrix products on tensor cores, with 10-bit mantissas."""

from dataclasses import dataclass

import torch

from trainer.core.device import Device
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import Probe, TrainState


@dataclass(frozen=True)
class Options:
    """TF32 has no options."""


def unavailable(device: Device) -> str | None:
    """Return why a device does not support TF32, or None."""
    if device.kind == "cpu":
        return "TF32 is a number format of NVIDIA GPUs; this run uses the CPU."
    if not device.has_tf32:
        return f"{device.name} does not support TF32, which needs compute capability 8.0."
    return None


def apply(state: TrainState, options: Options) -> None:
    """Set torch's flags for this process."""
    # The older flags: torch.compile reads them, and torch refuses to mix them with the newer ones.
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def status(state: TrainState, probe: Probe) -> OptimizationStatus:
    """Report torch's flags, on a device that obeys them."""
    reason = unavailable(state.machine)
    if reason is not None:
        return OptimizationStatus(False, reason)
    # "medium" allows bf16 for internal products as well; it counts as TF32 here.
    precision = torch.get_float32_matmul_precision()
    convolutions = "TF32" if torch.backends.cudnn.allow_tf32 else "fp32"
    products = "TF32" if precision in ("high", "medium") else "fp32"
    return OptimizationStatus(
        products == convolutions == "TF32",
        f"fp32 matrix products in {products}, convolutions in {convolutions}",
    )


OPTIMIZATION = Optimization(
    name="tf32",
    label="TF32",
    help="fp32 matrix products on tensor cores: faster on recent NVIDIA GPUs wherever mixed "
    "precision does not apply, with about three decimal digits of precision.",
    stage="backend",
    exact=False,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    status=status,
)

"""Mixed precision (Micikevicius et al. 2018): matrix products in 16 bits, weights in 32."""

from dataclasses import dataclass

import torch
from torch.amp.grad_scaler import GradScaler

from trainer.core.device import Device
from trainer.core.options import option
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import Precision, Probe, TrainState

_HALF_TYPES = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Options:
    """The options of mixed precision."""

    mode: str = option(
        "auto",
        "Number format",
        "auto: bf16 if the device supports it, else fp16. fp16 needs a GPU and scales the loss so "
        "that small gradients don't underflow.",
        choices=("auto", "bf16", "fp16"),
    )


def unavailable(device: Device) -> str | None:
    """Return why a device supports neither bf16 nor fp16, or None."""
    # NVIDIA GPUs have fp16 arithmetic from compute capability 5.3 on.
    if device.has_bf16 or device.capability >= (5, 3):
        return None
    return (
        f"{device.name} supports neither bf16 nor fp16, which needs compute capability 5.3 (it has "
        f"{device.capability[0]}.{device.capability[1]}). Train in full precision."
    )


def refuse(device: Device, options: Options) -> str | None:
    """Return why a device does not support the requested format, or None."""
    if options.mode == "fp16" and device.kind == "cpu":
        return "fp16 needs a GPU; use bf16 on a CPU. Choose bf16 or auto."
    if options.mode == "bf16" and not device.has_bf16:
        return (
            f"{device.name} does not support bf16, which needs compute capability 8.0. Choose "
            "fp16 or auto."
        )
    return None


def apply(state: TrainState, options: Options) -> None:
    """Run the forward pass under autocast, with loss scaling for fp16."""
    mode = options.mode
    if mode == "auto":
        mode = "bf16" if state.machine.has_bf16 else "fp16"
    # bf16 has the exponent range of fp32, so gradients do not underflow and need no scaling.
    if mode == "bf16":
        state.precision = Precision(torch.bfloat16)
    else:
        # fp16 has no positive number below 6e-8; scaling the loss keeps gradients above that.
        state.precision = Precision(torch.float16, GradScaler(state.machine.kind))


def status(state: TrainState, probe: Probe) -> OptimizationStatus:
    """Report the actual dtype of the operands of matrix products and convolutions."""
    total = sum(probe.matmul_dtypes.values())
    counts = {short: probe.matmul_dtypes[name] for name, short in _HALF_TYPES.items()}
    short, count = max(counts.items(), key=lambda item: item[1])
    if count == 0:
        kinds = ", ".join(sorted(probe.matmul_dtypes)) or "no matrix products"
        return OptimizationStatus(False, f"operands of matrix products: {kinds}")
    scaled = ", loss scaled" if state.precision.scaler.is_enabled() else ""
    detail = f"{count} of {total} operands of matrix products in {short}{scaled}"
    # Some layers stay in fp32 on purpose, so this asks for a majority only.
    return OptimizationStatus(count > total / 2, detail)


OPTIMIZATION = Optimization(
    name="mixed_precision",
    label="Mixed precision",
    help="Matrix products in 16 bits, weights in 32. Takes less activation memory and is faster on "
    "GPUs with tensor cores, but slower on CPUs without bf16 instructions. Losses differ slightly.",
    stage="precision",
    exact=False,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    status=status,
    refuse=refuse,
)

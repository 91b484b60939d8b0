"""SDPA: attention with PyTorch's fused kernels, which never store the T x T weights."""

from collections import Counter
from dataclasses import dataclass

from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import Probe, TrainState
from trainer.models._layers.attention import SelfAttention

# Keys are the ends of the names of ATen's operators; an unknown one is shown as it is.
_BACKENDS = {
    "flash_attention_for_cpu": "flash (CPU)",
    "flash_attention": "flash",
    "efficient_attention": "memory-efficient",
    "cudnn_attention": "cuDNN",
}


@dataclass(frozen=True)
class Options:
    """SDPA has no options."""


def apply(state: TrainState, options: Options) -> None:
    """Switch every attention layer of the model to the fused kernels."""
    for layer in _attention_layers(state):
        layer.use_sdpa = True


def status(state: TrainState, probe: Probe) -> OptimizationStatus:
    """Report which fused kernels ran."""
    layers = _attention_layers(state)
    if not layers:
        return OptimizationStatus(False, "this model has no attention")
    kernels = _kernels_seen(probe.operators)
    if any(layer.runs_in_rows for layer in layers):
        # PyTorch has no fused CPU kernel for attention with dropout, so those layers go by rows.
        kernels.append("blocks of rows")
    num_plain = sum(not layer.use_sdpa for layer in layers)
    if num_plain:
        return OptimizationStatus(
            False, f"{num_plain} of {len(layers)} attention layers use no fused kernel"
        )
    if not kernels:
        return OptimizationStatus(
            False, "PyTorch has no fused kernel for these shapes and used plain attention"
        )
    return OptimizationStatus(True, f"{len(layers)} attention layers, kernel: {', '.join(kernels)}")


def _attention_layers(state: TrainState) -> list[SelfAttention]:
    return [module for module in state.model.modules() if isinstance(module, SelfAttention)]


def _kernels_seen(operators: Counter[str]) -> list[str]:
    """Return the names of the fused kernels among ATen operators."""
    # ATen names an operator per backend, which shows which kernel PyTorch chose.
    prefix = "aten::_scaled_dot_product_"
    seen = {
        name.removeprefix(prefix).removesuffix("_backward")
        for name in operators
        if name.startswith(prefix)
    }
    return sorted(_BACKENDS.get(name, name) for name in seen)


OPTIMIZATION = Optimization(
    name="sdpa",
    label="Fast attention (SDPA)",
    help="Fused attention kernels: less memory, and faster for long clips. Results differ only by "
    "rounding.",
    stage="model",
    exact=True,
    options=Options,
    apply=apply,
    status=status,
)

"""LoRA (Hu et al. 2021, arXiv 2106.09685): train small adapters beside frozen weights.

A linear layer W computes W x + (alpha / rank) B A x, of which only A and B are trained. Whoever
takes weights away gets W + (alpha / rank) B A under the published keys: for validation, previews
and checkpoints the sum takes the place of W, and the untouched W is put back afterwards. Nothing is
ever subtracted, so W stays as it was to the last bit.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.core.device import Device
from trainer.core.errors import ConfigError
from trainer.core.options import option
from trainer.core.specs import Optimization, State
from trainer.core.train_state import Probe, Setup
from trainer.models._layers.attention import SelfAttention
from trainer.models._layers.gpt2 import InputMajorLinear

_ADAPTERS = ("lora_down", "lora_up")


@dataclass(frozen=True)
class Options:
    """The options of LoRA."""

    rank: int = option(
        16, "Rank", "Width of the adapters: more learns more and takes more.", min=1, max=1024
    )
    alpha: float = option(
        32.0,
        "Alpha",
        "The adapters count alpha / rank times; twice the rank is usual.",
        min=0.01,
        max=4096.0,
    )
    dropout: float = option(
        0.0,
        "Dropout",
        "Share of an adapter's inputs set to zero, against learning few clips by heart.",
        min=0.0,
        max=0.9,
    )
    target: str = option(
        "blocks",
        "Adapted layers",
        "attention: those of the blocks' attention. blocks: all linear layers of the blocks. "
        "model: those outside the blocks as well.",
        choices=("attention", "blocks", "model"),
    )
    train_embeddings: bool = option(
        False,
        "Train embeddings too",
        "New languages and new symbols need it: their rows have not been trained before.",
    )


def unavailable(device: Device) -> str | None:
    """Return None: it works everywhere."""
    return None


def apply(setup: Setup, options: Options) -> None:
    """Freeze the model and put adapters beside its linear layers.

    Raises:
        ConfigError: the model has no such layers.
    """
    layers = _linear_layers(setup, options.target)
    if not layers:
        raise ConfigError(
            f"LoRA finds no linear layers in {setup.family.label} ({options.target}). Choose "
            "other layers, or train without LoRA."
        )
    setup.model.requires_grad_(False)
    for layer in layers:
        _adapt(layer, options)
    if options.train_embeddings:
        for module in setup.model.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(True)
    setup.folded = functools.partial(folded, setup.model)
    setup.has_parts = True
    setup.train_other_weights()


@contextmanager
def folded(model: nn.Module) -> Iterator[None]:
    """Let every adapted layer hold the one weight that does the same, then put its own back."""
    layers = _adapted_layers(model)
    kept = [layer.weight.data for layer in layers]
    with torch.no_grad():
        for layer in layers:
            layer.weight.data = layer.whole_weight()
            layer.is_folded = True
    try:
        yield
    finally:
        for layer, weight in zip(layers, kept, strict=True):
            layer.weight.data = weight
            layer.is_folded = False


class _Adapted(nn.Module):
    """What adapted layers share; `lora_down` is (rank, inputs), `lora_up` (outputs, rank)."""

    weight: nn.Parameter
    lora_down: nn.Parameter
    lora_up: nn.Parameter
    lora_scale: float
    lora_dropout: float
    is_folded: bool

    def forward(self, values: Tensor) -> Tensor:
        """values: (B, T, D) of the layer's inputs. Returns (B, T, D) of its outputs."""
        plain = super().forward(values)
        if self.is_folded:
            return plain
        dropped = F.dropout(values, self.lora_dropout, self.training)
        change = F.linear(F.linear(dropped, self.lora_down), self.lora_up)
        return plain + self.lora_scale * change

    def whole_weight(self) -> Tensor:
        """Return the weight that does what weight and adapters do together, (D, D) as stored."""
        return self.weight + self.lora_scale * self._as_stored(self.lora_up @ self.lora_down)

    def _as_stored(self, change: Tensor) -> Tensor:
        """Return a change (outputs, inputs), any shape, laid out as the weight is."""
        return change

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        """Save the published keys only."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in _ADAPTERS:
            destination.pop(prefix + name, None)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any, **more: Any
    ) -> None:
        """Load what `state_dict` saves, and adapters where there are some."""
        own = {prefix + name: getattr(self, name) for name in _ADAPTERS}
        super()._load_from_state_dict(own | state_dict, prefix, *rest, **more)


class _AdaptedLinear(_Adapted, nn.Linear):  # type: ignore[misc]
    """A linear layer with adapters."""


class _AdaptedInputMajorLinear(_Adapted, InputMajorLinear):
    """A linear layer whose weight is stored transposed, with adapters."""

    def _as_stored(self, change: Tensor) -> Tensor:
        """Return a change (outputs, inputs), any shape, transposed."""
        return change.T


_CLASSES: dict[type, type[_Adapted]] = {
    nn.Linear: _AdaptedLinear,
    InputMajorLinear: _AdaptedInputMajorLinear,
}


def _adapt(layer: nn.Module, options: Options) -> None:
    """Turn a linear layer into an adapted one in place; at first it computes the same."""
    weight: nn.Parameter = layer.weight  # type: ignore[assignment]
    outputs, inputs = weight.shape if type(layer) is nn.Linear else weight.shape[::-1]
    layer.__class__ = _CLASSES[type(layer)]  # type: ignore[assignment]
    down = weight.new_empty(options.rank, inputs)
    nn.init.kaiming_uniform_(down, a=math.sqrt(5))
    layer.lora_down = nn.Parameter(down)
    layer.lora_up = nn.Parameter(weight.new_zeros(outputs, options.rank))
    layer.lora_scale = options.alpha / options.rank  # type: ignore[assignment]
    layer.lora_dropout = options.dropout  # type: ignore[assignment]
    layer.is_folded = False  # type: ignore[assignment]


def _linear_layers(setup: Setup, target: str) -> list[nn.Module]:
    blocks = setup.family.blocks(setup.model)
    if target == "model":
        roots = [setup.model]
    elif target == "blocks":
        roots = blocks
    else:
        inside = [module for block in blocks for module in block.modules()]
        roots = [module for module in inside if isinstance(module, SelfAttention)]
    found = {id(module): module for root in roots for module in root.modules()}
    return [module for module in found.values() if type(module) in _CLASSES]


def _adapted_layers(model: nn.Module) -> list[_Adapted]:
    return [module for module in model.modules() if isinstance(module, _Adapted)]


def state(setup: Setup, probe: Probe) -> State:
    """Tell how many layers have adapters, whether the rest is frozen, and what that saves."""
    layers = _adapted_layers(setup.model)
    if not layers:
        return State(False, "the weights themselves are trained")
    num_free = sum(layer.weight.requires_grad for layer in layers)
    if num_free:
        return State(False, f"{num_free} of {len(layers)} adapted layers train their weights too")
    trained = setup.trained_weights().values()
    held = [value for group in setup.optimizer.param_groups for value in group["params"]]
    if len(held) != len(trained):
        return State(False, "the optimizer does not hold what is trained")
    adapters = sum(layer.lora_down.numel() + layer.lora_up.numel() for layer in layers)
    whole = sum(value.numel() for value in setup.model.parameters()) - adapters
    few = sum(value.numel() for value in trained)
    # A gradient in fp32, and what the optimizer keeps for it.
    bytes_each = 4 + setup.optimizer_spec.state_bytes
    mib = [round(count * bytes_each / 2**20, 1) for count in (few, whole)]
    detail = (
        f"{len(layers)} layers with adapters of rank {layers[0].lora_down.shape[0]}: {few:,} of "
        f"{whole:,} weights are trained; gradients and optimizer state take {mib[0]:,} instead of "
        f"{mib[1]:,} MiB"
    )
    return State(True, detail)


OPTIMIZATION = Optimization(
    name="lora",
    label="LoRA",
    help="Trains small adapters beside the frozen weights of a base checkpoint: a fraction of the "
    "memory of gradients and optimizer state, and less can be forgotten or learned. Wants a "
    "learning rate about ten times higher. What is saved and exported is a usual model.",
    stage="model",
    exact=False,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    state=state,
)

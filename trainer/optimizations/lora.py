"""LoRA (Hu et al. 2021, arXiv 2106.09685): train small adapters beside frozen weights.

A linear layer W computes W x + (alpha / rank) B A x, and only A and B are trained. For validation,
previews and checkpoints the merged weight W + (alpha / rank) B A temporarily replaces W, under the
published keys. Afterwards the original W is put back; nothing is ever subtracted, so W stays
bit-identical.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from trainer.core.device import MIB
from trainer.core.errors import ConfigError
from trainer.core.options import option
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import Lora, Probe, TrainState
from trainer.models._layers.attention import SelfAttention
from trainer.models._layers.gpt2 import InputMajorLinear
from trainer.optimizers._core.build import rebuild_optimizer
from trainer.state.ema import start_average
from trainer.state.weights import trained_weights

_ADAPTERS = ("lora_down", "lora_up")


@dataclass(frozen=True)
class Options:
    """The options of LoRA."""

    rank: int = option(
        16,
        "Rank",
        "Width of the adapters; more can learn more and needs more memory.",
        min=1,
        max=1024,
    )
    # Rank 16 and alpha at twice the rank are common defaults for fine-tuning; chosen by hand.
    alpha: float = option(
        32.0,
        "Alpha",
        "Adapters are scaled by alpha / rank; twice the rank is usual.",
        min=0.01,
        max=4096.0,
    )
    dropout: float = option(
        0.0,
        "Dropout",
        "Share of an adapter's inputs set to zero, which limits overfitting on few clips.",
        min=0.0,
        max=0.9,
    )
    target: str = option(
        "blocks",
        "Adapted layers",
        "attention: the attention layers of the blocks. blocks: all linear layers of the blocks. "
        "model: linear layers outside the blocks, too.",
        choices=("attention", "blocks", "model"),
    )
    train_embeddings: bool = option(
        False,
        "Train embeddings too",
        "Needed for new languages and new symbols, whose rows have never been trained.",
    )


def apply(state: TrainState, options: Options) -> None:
    """Freeze the model and add adapters to its linear layers.

    Raises:
        ConfigError: the model has no linear layers to adapt.
    """
    layers = _linear_layers(state, options.target)
    if not layers:
        raise ConfigError(
            f"LoRA finds no linear layers in {state.family.label} ({options.target}). Choose "
            "other layers, or train without LoRA."
        )
    state.model.requires_grad_(False)
    for layer in layers:
        _adapt(layer, options)
    if options.train_embeddings:
        for module in state.model.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(True)
    state.lora = Lora(_adapted_layers(state.model))
    state.optimizer = rebuild_optimizer(state)
    # The old average holds weights that are frozen now, and lacks the adapters.
    if state.average is not None:
        state.average = start_average(state.model)


class _Adapted(nn.Module):
    """Base of adapted layers; `lora_down` is (rank, inputs), `lora_up` is (outputs, rank)."""

    weight: nn.Parameter
    lora_down: nn.Parameter
    lora_up: nn.Parameter
    lora_scale: float
    lora_dropout: float
    is_merged: bool

    def forward(self, values: Tensor) -> Tensor:
        """Map values (B, T, inputs) to (B, T, outputs)."""
        plain = super().forward(values)
        if self.is_merged:
            return plain
        dropped = F.dropout(values, self.lora_dropout, self.training)
        change = F.linear(F.linear(dropped, self.lora_down), self.lora_up)
        return plain + self.lora_scale * change

    def whole_weight(self) -> Tensor:
        """Return the merged weight, in the layout in which the weight is stored."""
        return self.weight + self.lora_scale * self._as_stored(self.lora_up @ self.lora_down)

    def _as_stored(self, change: Tensor) -> Tensor:
        """Return a change (outputs, inputs) in the layout of the stored weight (any shape)."""
        return change

    def _save_to_state_dict(
        self, destination: dict[str, Tensor], prefix: str, keep_vars: bool
    ) -> None:
        """Save the published keys only."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name in _ADAPTERS:
            destination.pop(prefix + name, None)

    def _load_from_state_dict(
        self, state_dict: dict[str, Tensor], prefix: str, *rest: Any, **more: Any
    ) -> None:
        """Load the published keys, and adapters if `state_dict` has them."""
        # Published checkpoints have no adapters; the current ones fill in for the strict load.
        own = {prefix + name: getattr(self, name) for name in _ADAPTERS}
        super()._load_from_state_dict(own | state_dict, prefix, *rest, **more)


class _AdaptedLinear(_Adapted, nn.Linear):  # type: ignore[misc]
    """A linear layer with adapters."""


class _AdaptedInputMajorLinear(_Adapted, InputMajorLinear):
    """A linear layer whose weight is stored transposed, with adapters."""

    def _as_stored(self, change: Tensor) -> Tensor:
        """Return a change (outputs, inputs), transposed (any shape)."""
        return change.T


_CLASSES: dict[type, type[_Adapted]] = {
    nn.Linear: _AdaptedLinear,
    InputMajorLinear: _AdaptedInputMajorLinear,
}


def _adapt(layer: nn.Module, options: Options) -> None:
    """Turn a linear layer into an adapted one in place; its output is unchanged at first."""
    weight: nn.Parameter = layer.weight  # type: ignore[assignment]
    outputs, inputs = weight.shape if type(layer) is nn.Linear else weight.shape[::-1]
    # Changing the class keeps the module and its parameters, so names, hooks and optimizer groups
    # stay valid.
    layer.__class__ = _CLASSES[type(layer)]  # type: ignore[assignment]
    down = weight.new_empty(options.rank, inputs)
    # As in the paper, A starts random and B at zero. a = sqrt(5) is nn.Linear's default and that of
    # the authors' loralib.
    nn.init.kaiming_uniform_(down, a=math.sqrt(5))
    layer.lora_down = nn.Parameter(down)
    layer.lora_up = nn.Parameter(weight.new_zeros(outputs, options.rank))
    layer.lora_scale = options.alpha / options.rank  # type: ignore[assignment]
    layer.lora_dropout = options.dropout  # type: ignore[assignment]
    layer.is_merged = False  # type: ignore[assignment]


def _linear_layers(state: TrainState, target: str) -> list[nn.Module]:
    blocks = state.family.blocks(state.model)
    if target == "model":
        roots = [state.model]
    elif target == "blocks":
        roots = blocks
    else:
        inside = [module for block in blocks for module in block.modules()]
        roots = [module for module in inside if isinstance(module, SelfAttention)]
    found = {id(module): module for root in roots for module in root.modules()}
    return [module for module in found.values() if type(module) in _CLASSES]


def _adapted_layers(model: nn.Module) -> list[_Adapted]:
    return [module for module in model.modules() if isinstance(module, _Adapted)]


def status(state: TrainState, probe: Probe) -> OptimizationStatus:
    """Report how many layers have adapters, whether the rest is frozen, and what that saves."""
    layers = _adapted_layers(state.model)
    if not layers:
        return OptimizationStatus(False, "all weights are trained directly")
    # A weight that trains beside its adapters would make the run a full fine-tune.
    num_free = sum(layer.weight.requires_grad for layer in layers)
    if num_free:
        return OptimizationStatus(
            False, f"{num_free} of {len(layers)} adapted layers train their weights too"
        )
    trained = trained_weights(state).values()
    held = [value for group in state.optimizer.param_groups for value in group["params"]]
    if len(held) != len(trained):
        return OptimizationStatus(False, "the optimizer does not hold the trained weights")
    adapters = sum(layer.lora_down.numel() + layer.lora_up.numel() for layer in layers)
    whole = sum(value.numel() for value in state.model.parameters()) - adapters
    few = sum(value.numel() for value in trained)
    # 4 bytes for a gradient in fp32, plus the optimizer's state.
    bytes_each = 4 + state.optimizer_spec.state_bytes
    mib = [round(count * bytes_each / MIB, 1) for count in (few, whole)]
    detail = (
        f"{len(layers)} layers with adapters of rank {layers[0].lora_down.shape[0]}: {few:,} of "
        f"{whole:,} weights are trained; gradients and optimizer state take {mib[0]:,} instead of "
        f"{mib[1]:,} MiB"
    )
    return OptimizationStatus(True, detail)


OPTIMIZATION = Optimization(
    name="lora",
    label="LoRA",
    help="Trains small adapters and freezes the weights of the base checkpoint. Gradients and "
    "optimizer state take a fraction of the memory, and the model forgets less but can also learn "
    "less. Needs a learning rate about ten times higher. Saves and exports a regular model.",
    stage="model",
    exact=False,
    options=Options,
    apply=apply,
    status=status,
)

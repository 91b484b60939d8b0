"""Switch a model between the weights that it trains, those that it evaluates, and fp32."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn

from trainer.core.train_state import AdaptedLayer, TrainState


def trained_weights(state: TrainState) -> dict[str, nn.Parameter]:
    """Return the trained weights by name, using the fp32 master copy where there is one."""
    masters = state.master_weights
    return {
        # The bf16 copy is only a rounded view of the fp32 one that the optimizer updates.
        name: masters.get(name, value)
        for name, value in state.model.named_parameters()
        if value.requires_grad
    }


def fp32_weights(state: TrainState) -> AbstractContextManager[None]:
    """Return a context in which the model holds fp32 weights, even if it trains in bf16."""
    return nullcontext() if state.half_weights is None else state.half_weights.fp32_weights()


def upcast_weights(state: TrainState) -> None:
    """Convert weights in bf16 to fp32 permanently."""
    if state.half_weights is not None:
        state.half_weights.upcast_weights()


def merged_lora(state: TrainState) -> AbstractContextManager[None]:
    """Return a context in which the model holds merged weights, with LoRA adapters added in."""
    return nullcontext() if state.lora is None else merged(state.lora.layers)


@contextmanager
def merged(layers: Sequence[AdaptedLayer]) -> Iterator[None]:
    """Merge the adapters into the weights for the block, then restore the original weights."""
    kept = [layer.weight.data for layer in layers]
    with torch.no_grad():
        for layer in layers:
            layer.weight.data = layer.whole_weight()
            layer.is_merged = True
    try:
        yield
    finally:
        for layer, weight in zip(layers, kept, strict=True):
            layer.weight.data = weight
            layer.is_merged = False


def has_other_weights(state: TrainState) -> bool:
    """Whether evaluation uses other weights than training: EMA, Schedule-Free's or merged LoRA."""
    has_mode = state.optimizer_spec.set_mode is not None
    return state.average is not None or has_mode or state.lora is not None


@contextmanager
def evaluation_weights(state: TrainState) -> Iterator[None]:
    """Switch the model to evaluation mode and evaluation weights, and back bit for bit."""
    with fp32_weights(state):
        was_training = state.model.training
        # The old mode is restored below, because it need not have been training mode.
        state.model.eval()
        try:
            with _other_weights(state):
                yield
        finally:
            state.model.train(was_training)


@contextmanager
def _other_weights(state: TrainState) -> Iterator[None]:
    if not has_other_weights(state):
        yield
        return
    named = state.model.named_parameters()
    # Frozen weights are the same in training and evaluation, so copying them wastes memory.
    parameters = {name: value for name, value in named if value.requires_grad}
    # Copied, because Schedule-Free's own way back is an interpolation that loses precision.
    kept = {name: value.detach().clone() for name, value in parameters.items()}
    if state.optimizer_spec.set_mode is not None:
        state.optimizer_spec.set_mode(state.optimizer, False)
    # After set_mode, because the average, where there is one, is what evaluation should use.
    if state.average is not None:
        _copy_into(parameters, state.average)
    try:
        with merged_lora(state):
            yield
    finally:
        if state.optimizer_spec.set_mode is not None:
            state.optimizer_spec.set_mode(state.optimizer, True)
        _copy_into(parameters, kept)  # last: it undoes the rounding of set_mode's way back


def _copy_into(parameters: dict[str, nn.Parameter], values: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(values[name])

"""Run one real forward and backward pass, record what it used, and restore all state.

The result shows which optimizations are really active (kernels, dtypes, recomputed blocks), which
may differ from what was requested.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.core.train_state import Probe, TrainState
from trainer.core.types import Batch

_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::convolution": (0, 1),
    "aten::convolution_backward": (0, 1, 2),
}
"""Matrix-product operators and the positions of the operands that are multiplied."""


def probe(state: TrainState, batch: Batch) -> Probe:
    """Compute the losses and gradients of a batch as a step would and record what happened.

    Weights, buffers, gradients, random states and modes are restored.
    """
    recorder = _Recorder()
    # Only blocks are counted: they are what checkpointing and compiling wrap.
    blocks = state.family.blocks(state.model)
    with _counted_forwards(blocks) as calls, recorder:
        saved_bytes = _measure_saved_bytes(state, batch)
    # A dispatch mode disables compiled code, so compiled blocks run once more without recording.
    before = _compiled_runs(blocks)
    if any("program" in vars(block) for block in blocks):
        saved_bytes = _measure_saved_bytes(state, batch)
    pairs = zip(before, _compiled_runs(blocks), strict=True)
    return Probe(
        operators=recorder.operators,
        matmul_dtypes=recorder.matmul_dtypes,
        block_calls=tuple(calls[id(block)] for block in blocks),
        saved_bytes=saved_bytes,
        compiled_calls=tuple(after - earlier for earlier, after in pairs),
    )


def forward_backward(
    state: TrainState, batch: Batch, watched: AbstractContextManager[object] | None = None
) -> None:
    """Run one forward and backward pass as a step would and restore all state.

    The forward pass runs inside the context manager `watched`.
    """
    with _restore_afterwards(state.model, state.device):
        with watched or nullcontext():
            with state.precision.autocast(state.device):
                losses = state.family.losses(state.model, batch)
            loss = torch.stack(list(losses.values())).sum()
        # No loss scaling: it would change the scaler's state and make no difference here.
        loss.backward()


def _measure_saved_bytes(state: TrainState, batch: Batch) -> int:
    """Run a pass and return the bytes saved for its backward pass."""
    saved = _SavedStorages(state.model)
    forward_backward(state, batch, saved_tensors_hooks(saved.pack, saved.unpack))
    blocks = state.family.blocks(state.model)
    # Selective checkpointing caches results outside of autograd's saved tensors.
    return saved.num_bytes + sum(vars(block).get("kept_bytes", 0) for block in blocks)


def _compiled_runs(blocks: list[nn.Module]) -> list[int]:
    return [vars(block).get("compiled_runs", 0) for block in blocks]


class _Recorder(TorchDispatchMode):
    """Counts operators below autograd and autocast, where operands have their final dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.matmul_dtypes: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Count the operator and its operand dtypes, then run it."""
        name = func.name().split(".")[0]  # without the overload, such as `.out`
        self.operators[name] += 1
        places = (0, 1, 2) if "scaled_dot_product" in name else _PRODUCTS.get(name, ())
        for place in places:
            if isinstance(operand := args[place], Tensor):
                self.matmul_dtypes[str(operand.dtype).removeprefix("torch.")] += 1
        return func(*args, **(kwargs or {}))


class _SavedStorages:
    """Sums the storages that autograd saves, each once, without parameters and buffers."""

    def __init__(self, model: nn.Module) -> None:
        # Parameters and buffers exist anyway; saving a reference to them costs nothing.
        self._seen = {_storage_of(value) for value in [*model.parameters(), *model.buffers()]}
        self.num_bytes = 0

    def pack(self, value: Tensor) -> Tensor:
        """Count a saved tensor of any shape; detach it, because a saved output makes a cycle."""
        storage = _storage_of(value)
        if storage not in self._seen:
            self._seen.add(storage)
            # The whole storage, because a saved view keeps all of it alive.
            self.num_bytes += value.untyped_storage().nbytes()
        return value.detach()

    def unpack(self, value: Tensor) -> Tensor:
        """Return the saved tensor, of any shape, unchanged."""
        return value


def _storage_of(value: Tensor) -> int:
    """Return the address of the storage behind a tensor of any shape."""
    return value.untyped_storage().data_ptr()


@contextmanager
def _counted_forwards(blocks: list[nn.Module]) -> Iterator[Counter[int]]:
    """Count how often the forward of each block runs, by the id of the block.

    The class is patched, not the module: checkpointing recomputes by calling `forward` directly, so
    module hooks would miss it.
    """
    calls: Counter[int] = Counter()
    kinds = {type(block) for block in blocks}
    originals = {kind: kind.__dict__.get("forward") for kind in kinds}
    for kind in kinds:
        kind.forward = _counting(kind, kind.forward, calls)
    try:
        yield calls
    finally:
        for kind, original in originals.items():
            if original is None:
                del kind.forward
            else:
                kind.forward = original


def _counting(
    kind: type[nn.Module], forward: Callable[..., object], calls: Counter[int]
) -> Callable[..., object]:
    def counted(self: nn.Module, *args: object, **kwargs: object) -> object:
        # If a subclass calls super().forward(), count it only once, in its own class.
        if type(self) is kind:
            calls[id(self)] += 1
        return forward(self, *args, **kwargs)

    return counted


@contextmanager
def _restore_afterwards(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore gradients, buffers and all random states on exit."""
    gradients = [(value, value.grad) for value in model.parameters()]
    buffers = [(value, value.detach().clone()) for value in model.buffers()]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    gpus = [device] if device.type == "cuda" else []
    for value, _ in gradients:
        value.grad = None  # not zeroed: accumulated gradients must come back untouched
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        for value, gradient in gradients:
            value.grad = gradient
        with torch.no_grad():
            # In place: compiled blocks and captured graphs hold the buffers' addresses.
            for value, kept in buffers:
                value.copy_(kept)
        random.setstate(python_state)
        np.random.set_state(numpy_state)

"""The probe: one real forward and backward pass, watched closely, that leaves no trace."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.data.types import Batch
from trainer.setup import Probe, Setup

_PRODUCTS = {
    "aten::mm": (0, 1),
    "aten::bmm": (0, 1),
    "aten::addmm": (1, 2),
    "aten::baddbmm": (1, 2),
    "aten::convolution": (0, 1),
    "aten::convolution_backward": (0, 1, 2),
}
"""Operators that multiply matrices, with the places of the operands that are multiplied."""


def probe(setup: Setup, batch: Batch) -> Probe:
    """Run the losses of a batch and their gradients as a step would, and tell what happened.

    Weights, buffers, gradients, random states and modes are afterwards as they were before.
    """
    recorder = _Recorder()
    blocks = setup.family.blocks(setup.model)
    with _counted_forwards(blocks) as calls, recorder:
        saved_bytes = _rehearse_and_weigh(setup, batch)
    # Watching single operators keeps blocks from running compiled, so those run once more alone.
    before = _compiled_runs(blocks)
    if any("program" in vars(block) for block in blocks):
        saved_bytes = _rehearse_and_weigh(setup, batch)
    pairs = zip(before, _compiled_runs(blocks), strict=True)
    return Probe(
        operators=recorder.operators,
        matmul_dtypes=recorder.matmul_dtypes,
        block_calls=tuple(calls[id(block)] for block in blocks),
        saved_bytes=saved_bytes,
        compiled_calls=tuple(after - earlier for earlier, after in pairs),
    )


def rehearse(
    setup: Setup, batch: Batch, watched: AbstractContextManager[Any] | None = None
) -> None:
    """Run one forward and backward pass as a step would, and leave no trace of it.

    The forward pass runs within `watched`.
    """
    with _nothing_changed(setup.model, setup.device):
        with watched or nullcontext():
            with setup.precision.autocast(setup.device):
                losses = setup.family.losses(setup.model, batch)
            loss = torch.stack(list(losses.values())).sum()
        # Scaling would change the scaler's own state and shows nothing more.
        loss.backward()


def _rehearse_and_weigh(setup: Setup, batch: Batch) -> int:
    """Run a pass and return the bytes kept for its backward part."""
    saved = _SavedStorages(setup.model)
    rehearse(setup, batch, saved_tensors_hooks(saved.pack, saved.unpack))
    blocks = setup.family.blocks(setup.model)
    # Selective checkpointing keeps results of its own beside autograd's.
    return saved.num_bytes + sum(vars(block).get("kept_bytes", 0) for block in blocks)


def _compiled_runs(blocks: list[nn.Module]) -> list[int]:
    return [vars(block).get("compiled_runs", 0) for block in blocks]


class _Recorder(TorchDispatchMode):
    """Counts operators below autograd and autocast, where operands have the types that run."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        self.matmul_dtypes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Note the operator and run it."""
        name = func.name().split(".")[0]
        self.operators[name] += 1
        places = (0, 1, 2) if "scaled_dot_product" in name else _PRODUCTS.get(name, ())
        for place in places:
            if isinstance(args[place], Tensor):
                self.matmul_dtypes[str(args[place].dtype).removeprefix("torch.")] += 1
        return func(*args, **(kwargs or {}))


class _SavedStorages:
    """Adds up the memory that autograd keeps, each storage once, parameters and buffers not."""

    def __init__(self, model: nn.Module) -> None:
        self._seen = {_storage_of(value) for value in [*model.parameters(), *model.buffers()]}
        self.num_bytes = 0

    def pack(self, value: Tensor) -> Tensor:
        """Note a tensor of any shape; detached, since keeping an output would be a cycle."""
        storage = _storage_of(value)
        if storage not in self._seen:
            self._seen.add(storage)
            self.num_bytes += value.untyped_storage().nbytes()
        return value.detach()

    def unpack(self, value: Tensor) -> Tensor:
        """Return the tensor, of any shape, as it was kept."""
        return value


def _storage_of(value: Tensor) -> int:
    """Return an identity of the memory behind a tensor of any shape."""
    return value.untyped_storage().data_ptr()


@contextmanager
def _counted_forwards(blocks: list[nn.Module]) -> Iterator[Counter[int]]:
    """Count how often the forward of each block runs, by the id of the block.

    Counting happens in the class: checkpointing runs `forward` again without calling the module,
    so hooks on the module would miss it.
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
    kind: type[nn.Module], forward: Callable[..., Any], calls: Counter[int]
) -> Callable[..., Any]:
    def counted(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        # A subclass that calls super().forward() is counted in its own class.
        if type(self) is kind:
            calls[id(self)] += 1
        return forward(self, *args, **kwargs)

    return counted


@contextmanager
def _nothing_changed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put gradients, buffers and all random states back at the end."""
    gradients = [(value, value.grad) for value in model.parameters()]
    buffers = [(value, value.detach().clone()) for value in model.buffers()]
    python_state, numpy_state = random.getstate(), np.random.get_state()
    gpus = [device] if device.type == "cuda" else []
    for value, _ in gradients:
        value.grad = None
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        for value, gradient in gradients:
            value.grad = gradient
        with torch.no_grad():
            for value, kept in buffers:
                value.copy_(kept)
        random.setstate(python_state)
        np.random.set_state(numpy_state)

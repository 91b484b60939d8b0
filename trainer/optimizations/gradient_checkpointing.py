"""Gradient checkpointing (Chen et al. 2016, arXiv 1604.06174): recompute to save memory.

`full` keeps only a block's input. `light` also keeps every product with weights, so that only
attention and element-wise operations are recomputed; `medium` keeps only those products that are no
wider than their input. A compiled block does light and medium inside its graph, without a Python
call per operator.
"""

import functools
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trainer.core.device import MIB
from trainer.core.options import option
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import Probe, TrainState
from trainer.optimizations._core.blocks import compute_block, is_compiled


@dataclass(frozen=True)
class Options:
    """The options of gradient checkpointing."""

    level: str = option(
        "full",
        "How much is computed again",
        "light: attention and element-wise operations. medium: wide matrix products, too. "
        "full: whole blocks, which needs the least memory and is slowest.",
        choices=("light", "medium", "full"),
    )


def apply(state: TrainState, options: Options) -> None:
    """Make every block drop its activations and recompute them in the backward pass."""
    for block in state.family.blocks(state.model):
        block.checkpointing = options.level  # type: ignore[assignment]
        # A bound method, not a closure over the block, so that a copied model uses its own blocks.
        block.forward = types.MethodType(_checkpointed_forward, block)


def status(state: TrainState, probe: Probe) -> OptimizationStatus:
    """Report how many blocks were recomputed in the backward pass, and how much memory was kept.

    A block that is recomputed runs its forward twice, at every level.
    """
    blocks = state.family.blocks(state.model)
    if not blocks:
        return OptimizationStatus(False, "this model has no blocks to checkpoint")
    level = getattr(blocks[0], "checkpointing", "none")
    kept = f"{probe.saved_bytes / MIB:.1f} MiB kept for the backward pass"
    pairs = list(zip(blocks, probe.block_calls, probe.compiled_calls, strict=True))
    num_inside = sum(_is_checkpointed_inside(block) and compiled for block, _, compiled in pairs)
    if num_inside == len(blocks):
        return OptimizationStatus(True, f"{level}, inside {num_inside} compiled blocks, {kept}")
    # Counted by the probe in one forward and backward pass.
    num_twice = sum(calls == 2 for calls in probe.block_calls)
    products = sum(int(getattr(block, "kept_bytes", 0)) for block in blocks)
    part = f" ({products / MIB:.1f} MiB of them products with weights)" if products else ""
    detail = f"{level}: {num_twice} of {len(blocks)} blocks computed twice, {kept}{part}"
    return OptimizationStatus(num_twice == len(blocks), detail)


def _checkpointed_forward(self: nn.Module, *args: object, **kwargs: object) -> object:
    if not (self.training and torch.is_grad_enabled()) or _is_checkpointed_inside(self):
        return compute_block(self, *args, **kwargs)
    level = getattr(self, "checkpointing", "full")
    keeper = _SavePolicy(wide=level == "light")

    def contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
        if level == "full":
            return nullcontext(), _kept_statistics(self)
        first, again = create_selective_checkpoint_contexts(keeper)
        return first, _both(again, _kept_statistics(self))

    compute = functools.partial(compute_block, self, **kwargs)
    # `checkpoint` restores the random state for the second pass, so dropout masks are the same.
    found = checkpoint(compute, *args, use_reentrant=False, context_fn=contexts)
    vars(self)["kept_bytes"] = keeper.num_bytes
    return found


def _is_checkpointed_inside(block: nn.Module) -> bool:
    """Return whether the compiler handles the level inside its graph (light and medium only)."""
    return is_compiled(block) and getattr(block, "checkpointing", "full") != "full"


class _SavePolicy:
    """A checkpoint policy that keeps products with weights and counts their bytes.

    Nothing else is ever kept. Attention draws random numbers inside its kernels, and skipping it in
    the second pass would shift all random numbers after it.
    """

    def __init__(self, *, wide: bool) -> None:
        self.wide = wide
        self.num_bytes = 0

    def __call__(
        self, ctx: SelectiveCheckpointContext, op: object, *args: object, **kwargs: object
    ) -> CheckpointPolicy:
        """Return whether to keep the result of an operator."""
        size = _size_of_product(op, [value for value in args if isinstance(value, Tensor)])
        if size is None or (size.is_wider and not self.wide):
            return CheckpointPolicy.PREFER_RECOMPUTE
        # The policy is asked in both passes; count each result once.
        if not ctx.is_recompute:
            self.num_bytes += size.num_bytes
        return CheckpointPolicy.MUST_SAVE


@dataclass(frozen=True)
class _ProductSize:
    """The size of a product's result in bytes, and whether it is wider than its input."""

    num_bytes: int
    is_wider: bool


def _size_of_product(op: object, tensors: list[Tensor]) -> _ProductSize | None:
    """Return the size of a product of values and weights (any shape); None for other operators."""
    if op == torch.ops.aten.convolution.default:
        values, weight = tensors[:2]
        # Assumes that padding preserves the length, as in all convolutions of these models.
        outputs, inputs = weight.shape[0], values.shape[1]
        rows = values.numel() // inputs
    elif op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
        values, weight = tensors[-2:]
        rows, inputs, outputs = values.shape[0], *weight.shape
    else:
        return None
    return _ProductSize(rows * outputs * values.element_size(), outputs > inputs)


@contextmanager
def _both(
    first: AbstractContextManager[object], second: AbstractContextManager[object]
) -> Iterator[None]:
    with first, second:
        yield


@contextmanager
def _kept_statistics(block: nn.Module) -> Iterator[None]:
    """Stop the second pass from updating BatchNorm's running statistics a second time."""
    # Momentum 0 makes the update of the running mean and variance a no-op; with no counter there is
    # nothing to increment.
    norms = [
        module
        for module in block.modules()
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
    ]
    kept = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, num_batches_tracked in kept:
            norm.momentum, norm.num_batches_tracked = momentum, num_batches_tracked


OPTIMIZATION = Optimization(
    name="gradient_checkpointing",
    label="Gradient checkpointing",
    help="Keeps fewer activations and recomputes them in the backward pass: less memory but slower "
    "steps, with bit-identical results. Light costs a few percent, full about a quarter of a step.",
    stage="model",
    exact=True,
    options=Options,
    apply=apply,
    status=status,
)

"""Gradient checkpointing (Chen et al. 2016, arXiv 1604.06174): compute twice, remember less."""

import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainer.device import Device
from trainer.setup import Probe, Setup
from trainer.specs import Optimization, State


@dataclass(frozen=True)
class Options:
    """Gradient checkpointing has no options."""


def unavailable(device: Device) -> str | None:
    """Return None: it works everywhere."""
    return None


def apply(setup: Setup, options: Options) -> None:
    """Let every block of the model forget its activations and compute them again when needed."""
    for block in setup.family.blocks(setup.model):
        # Bound to the block, not closed over it, so that a copy of the model stays a copy.
        block.forward = types.MethodType(_forward_twice, block)


def state(setup: Setup, probe: Probe) -> State:
    """Tell whether the forward of every block really ran a second time in the backward pass."""
    num_blocks = len(probe.block_calls)
    num_twice = sum(calls == 2 for calls in probe.block_calls)
    if num_blocks == 0:
        return State(False, "this model has no blocks to checkpoint")
    kept = f"{probe.saved_bytes / 2**20:.1f} MiB kept for the backward pass"
    detail = f"{num_twice} of {num_blocks} blocks computed twice, {kept}"
    return State(num_twice == num_blocks, detail)


def _forward_twice(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    forward = types.MethodType(type(self).forward, self)
    if not (self.training and torch.is_grad_enabled()):
        return forward(*args, **kwargs)

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _kept_statistics(self)

    # Random states are put back for the second pass, so dropout draws the same numbers.
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


@contextmanager
def _kept_statistics(block: nn.Module) -> Iterator[None]:
    """Keep the second pass from updating the running statistics of BatchNorm once more."""
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
    help="Keeps less for the backward pass and computes it again: far less memory for slower "
    "steps, the same results bit for bit.",
    stage="model",
    exact=True,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    state=state,
)

"""Estimate the peak memory of a configuration before it runs.

The real model, optimizations and losses run on fake tensors (shapes without contents) while every
storage is counted from allocation to release. Nothing is fitted to measurements, so the estimate
works for machines and models that were never measured.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import _engine_run_backward

from trainer.config.resolve import Entries, resolve
from trainer.core.device import GIB, Device
from trainer.core.run_config import RunConfig
from trainer.core.train_state import TrainState, World
from trainer.core.types import Batch, Clip
from trainer.data.features.dataset import Dataset
from trainer.profiling.cuda_allocator import CudaSemantics
from trainer.profiling.memory_tracker import FakeScalars, FlopCounter, MemoryTracker
from trainer.profiling.synthetic_batches import (
    largest_batches,
    longest_clips,
    make_synthetic,
    make_synthetic_clips,
    synthetic_spec_of,
)
from trainer.training.assemble import build_train_state, choose_device

# These stages set up the process or replace the graph, which fake tensors do not allow. Without
# them the estimate is that of the eager graph.
_UNSEEN_STAGES = ("backend", "compile")


@dataclass(frozen=True)
class Estimate:
    """The memory of a step in bytes; `peak` is the maximum at any moment of the step.

    `working` is the rest of the peak besides weights, optimizer state and average: activations,
    the gradients that exist at that moment, and temporaries. `left_out` names optimizations that
    the estimate cannot include; they do not increase memory.
    """

    peak: int
    weights: int
    gradients: int
    optimizer: int
    average: int
    working: int
    flops: float
    parameters: int
    trained: int
    left_out: tuple[str, ...]

    @property
    def peak_gib(self) -> float:
        """The peak in GiB."""
        return self.peak / GIB


def estimate(
    config: RunConfig,
    *,
    clips: Sequence[Clip] = (),
    device: Device | None = None,
    size: str = "",
) -> Estimate:
    """Count the memory of the largest step of a configuration.

    clips: those of the run (only length and text matter); if empty, clips of the family's usual
    maximum length. device: where the run will train, possibly on another machine. size: use a
    random model of this size instead of the base.

    Raises:
        ConfigError: a name does not exist, or the family cannot be estimated without clips.
    """
    entries = resolve(config)
    device = device or choose_device(config.training.device)
    count = config.training.batch_size
    usual = make_synthetic_clips([synthetic_spec_of(entries).longest_s] * count)
    dataset = make_synthetic(config, entries, longest_clips(clips or usual, count), size)
    # More than one candidate: with a token budget, many short clips can need more memory than a
    # few long ones.
    batches = largest_batches(config, entries, dataset)
    found = [count_step(config, entries, dataset, batch, device) for batch in batches]
    return max(found, key=lambda each: each.peak)


def count_step(
    config: RunConfig, entries: Entries, dataset: Dataset, batch: Batch, device: Device
) -> Estimate:
    """Run one micro-step on fake tensors (two with gradient accumulation) and count its memory.

    A GPU is simulated on the CPU even if there is one, because torch would take half a GiB of it
    for a context, perhaps from a run that needs it.
    """
    machine = replace(device, kind="cpu")
    live, counter = MemoryTracker(), FlopCounter()
    seen = [pair for pair in entries.optimizations if pair[0].stage not in _UNSEEN_STAGES]
    left_out = [pair[0].name for pair in entries.optimizations if pair[0].stage in _UNSEEN_STAGES]
    with FakeTensorMode() as fake:
        state = _build(config, entries, dataset, machine)
        for optimization, options in seen:
            optimization.apply(state, options)
        tensors = {
            name: _place(fake.from_tensor(value), state.device)
            for name, value in batch.tensors.items()
        }
        held = [*state.model.parameters(), *state.model.buffers(), *(state.average or {}).values()]
        held += state.master_weights.values()
        with ExitStack() as stack:
            if device.kind == "cuda":
                is_autocast = state.precision.autocast_dtype is not None
                stack.enter_context(CudaSemantics(is_autocast=is_autocast))
            stack.enter_context(live)
            for value in [*held, *tensors.values()]:
                live.track(value)
            weights = live.now_bytes
            # One update before counting, so that the optimizer state exists during the step.
            is_stepping = _make_state(state)
            optimizer = live.now_bytes - weights
            live.restart_peak()
            with counter:
                _micro_step(state, replace(batch, tensors=tensors))
            # From the second micro-step on, gradients exist during the forward pass too.
            if config.training.accumulate > 1:
                _micro_step(state, replace(batch, tensors=tensors))
            if is_stepping:
                torch.nn.utils.clip_grad_norm_(state.model.parameters(), 1.0)
                with FakeScalars():
                    state.optimizer.step()
        if not is_stepping:
            # The optimizer could not run on fake tensors; its spec states its bytes per weight.
            optimizer = round(state.optimizer_spec.state_bytes * _count_trained(state))
            live.peak_bytes += optimizer
        return _sum_up(state, live.peak_bytes, weights, optimizer, counter.flops, tuple(left_out))


def _build(config: RunConfig, entries: Entries, dataset: Dataset, machine: Device) -> TrainState:
    with torch.device(machine.torch_name):
        model = synthetic_spec_of(entries).network(entries.family_options, dataset.corpus.facts)
    return build_train_state(
        Path("."), config, entries, dataset, model=model, machine=machine, world=World()
    )


def _place(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor of any shape on a device."""
    return value.to(device)


def _micro_step(state: TrainState, batch: Batch) -> None:
    with state.precision.autocast(state.device):
        losses = state.family.losses(state.model, batch)
    loss = torch.stack(list(losses.values())).sum()
    # The same as `loss.backward()`, but with the CUDA imitation active. A torch function mode is
    # disabled inside the functions that it intercepts, so through the method checkpointed blocks
    # would be recomputed without it and differ from the forward pass.
    _engine_run_backward(
        (loss,), (torch.ones_like(loss),), False, False, (),
        allow_unreachable=True, accumulate_grad=True,
    )  # fmt: skip


def _make_state(state: TrainState) -> bool:
    """Let the optimizer create its state; return False if it cannot do so on fake tensors."""
    for value in _trained(state):
        value.grad = torch.empty_like(value, dtype=value.grad_dtype)
    try:
        with FakeScalars():
            state.optimizer.step()
    except RuntimeError:
        # It read the contents of a tensor by another way than `item`, which is answered for it.
        state.optimizer.state.clear()
        return False
    finally:
        state.optimizer.zero_grad(set_to_none=True)
    return True


def _trained(state: TrainState) -> list[torch.nn.Parameter]:
    return [value for value in state.model.parameters() if value.requires_grad]


def _count_trained(state: TrainState) -> int:
    return sum(value.numel() for value in _trained(state))


def _sum_up(
    state: TrainState,
    peak: int,
    weights: int,
    optimizer: int,
    flops: float,
    left_out: tuple[str, ...],
) -> Estimate:
    average = sum(value.nbytes for value in (state.average or {}).values())
    return Estimate(
        peak=peak,
        weights=weights - average,
        gradients=sum(value.numel() * _bits(value) // 8 for value in _trained(state)),
        optimizer=optimizer,
        average=average,
        working=peak - weights - optimizer,  # `weights` still includes the average here
        flops=flops,
        parameters=sum(value.numel() for value in state.model.parameters()),
        trained=_count_trained(state),
        left_out=left_out,
    )


def _bits(value: torch.nn.Parameter) -> int:
    """Return the bits per element of a weight's gradient."""
    return torch.finfo(value.grad_dtype or value.dtype).bits

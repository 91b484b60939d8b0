"""Measure the peak memory of a step on a CPU with PyTorch's profiler."""

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from trainer.core.train_state import TrainState
from trainer.profiling.memory_tracker import MemoryTracker
from trainer.training.loop import train_step


def peak_on_cpu(train_state: TrainState, step: int) -> int:
    """Run a step and return the peak in bytes of tensors allocated before and during it.

    The profiler reports only allocations made while it runs, so weights and state are added.
    """
    # Otherwise freed gradients would count as negative allocations.
    train_state.optimizer.zero_grad(set_to_none=True)
    held = MemoryTracker()
    states = [value for state in train_state.optimizer.state.values() for value in state.values()]
    lying = [*train_state.model.parameters(), *train_state.model.buffers(), *states]
    for value in [
        *lying,
        *train_state.master_weights.values(),
        *(train_state.average or {}).values(),
    ]:
        if isinstance(value, torch.Tensor):
            held.track(value)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        train_step(train_state, step)
    # The public API only has totals by operator; the order of allocations is in the raw events.
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events: list[Any] = seen.profiler.kineto_results.events()
    now = peak = 0
    for event in events:
        now += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, now)
    return held.now_bytes + peak

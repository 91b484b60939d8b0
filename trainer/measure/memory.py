"""Memory of a step on a CPU: what PyTorch's allocator hands out, seen by the profiler."""

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from trainer.live_memory import LiveMemory
from trainer.loop import train_step
from trainer.setup import Setup


def peak_on_cpu(setup: Setup, step: int) -> int:
    """Do a step and return the most bytes held in it: what lay there before, what was handed out.

    The profiler tells only of memory taken while it watches, so weights and state are added.
    """
    setup.optimizer.zero_grad(set_to_none=True)
    held = LiveMemory()
    states = [value for state in setup.optimizer.state.values() for value in state.values()]
    lying = [*setup.model.parameters(), *setup.model.buffers(), *states]
    for value in [*lying, *setup.masters.values(), *(setup.average or {}).values()]:
        if isinstance(value, torch.Tensor):
            held.note(value)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as seen:
        train_step(setup, step)
    assert seen.profiler is not None and seen.profiler.kineto_results is not None
    events: list[Any] = seen.profiler.kineto_results.events()
    now = peak = 0
    for event in events:
        now += event.nbytes() if event.name() == "[memory]" else 0
        peak = max(peak, now)
    return held.now_bytes + peak

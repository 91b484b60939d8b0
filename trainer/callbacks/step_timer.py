"""Measure where the time of a step goes, without making the device wait."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Lap:
    """Start and end of one part of a step; readable once the device has finished it."""

    began: "float | torch.cuda.Event"
    ended: "float | torch.cuda.Event"

    def seconds(self) -> float:
        """Return the duration in seconds; on a GPU, the GPU's time, not the host's."""
        # `elapsed_time` is in milliseconds.
        if isinstance(self.began, torch.cuda.Event) and isinstance(self.ended, torch.cuda.Event):
            return self.began.elapsed_time(self.ended) / 1000
        assert not isinstance(self.began, torch.cuda.Event)
        assert not isinstance(self.ended, torch.cuda.Event)
        return self.ended - self.began


BeginPart = Callable[[str], None]
"""Called when a part of a step begins: `data`, `forward`, `backward` or `update`."""


def untimed(part: str) -> None:
    """Begin a part of a step that nobody times."""


class OptimizerTimer:
    """Times every `optimizer.step()` through the optimizer's hooks, without code in the loop.

    Devices other than CPU and CUDA have no event timing here, so nothing is measured there.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        self._device = device
        self._began: float | torch.cuda.Event | None = None
        self._lap: Lap | None = None
        if device.type in ("cpu", "cuda"):
            optimizer.register_step_pre_hook(self._begin)
            optimizer.register_step_post_hook(self._end)

    def take(self) -> Lap | None:
        """Return the lap of the last step; None if the optimizer did not run."""
        lap, self._lap = self._lap, None
        return lap

    def _begin(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        self._began = self._now()

    def _end(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        if self._began is not None:
            self._lap, self._began = Lap(self._began, self._now()), None

    def _now(self) -> "float | torch.cuda.Event":
        return _instant(self._device)


class StepTimer:
    """Times the parts of a step; each part lasts until the next `begin_part`.

    On a GPU the times are events in its queue. A wait for data therefore counts only while the GPU
    has no other work: if earlier work hides it, it costs nothing and counts as zero.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Without events, host times would measure how fast work is queued, not how long it takes.
        self._is_silent = device.type not in ("cpu", "cuda")
        self._instants: list[tuple[str, float | torch.cuda.Event]] = []

    def begin_part(self, part: str) -> None:
        """Begin a part of the step, which ends the part before it."""
        if not self._is_silent:
            self._instants.append((part, _instant(self._device)))

    def take(self) -> list[tuple[str, Lap]]:
        """Return the finished parts since the last call, in order, without the current one."""
        # The last instant ends the part before it and begins none: nothing has ended that one yet.
        instants, self._instants = self._instants, []
        pairs = zip(instants, instants[1:], strict=False)  # one shorter on purpose
        return [(part, Lap(began, ended)) for (part, began), (_, ended) in pairs]


def seconds_by_part(laps: list[tuple[str, Lap]]) -> dict[str, float]:
    """Sum the laps of each part in seconds; the device must have finished them."""
    sums: dict[str, float] = {}
    for part, lap in laps:
        sums[part] = sums.get(part, 0.0) + lap.seconds()
    return sums


def _instant(device: torch.device) -> "float | torch.cuda.Event":
    if device.type == "cpu":
        return time.perf_counter()
    # Recording only queues a mark; reading it now would make the host wait for the GPU.
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event

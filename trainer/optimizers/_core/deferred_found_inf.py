"""Late verdicts: the host counts a step before it knows whether the device took it.

The verdict is copied to the host beside the work of the device and looked at when the next step
begins, by when it lies there; what was counted for a step that was left out is taken back. So
counts are exact whenever they are used or saved, and nothing waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class LateVerdict:
    """The verdict on the last step of an optimizer, and what to undo if it says no."""

    def __init__(self, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._flag = torch.zeros((), pin_memory=is_cuda)
        # The same memory, which the host may look at without an operator of torch.
        self._seen = self._flag.numpy()
        self._copied = torch.cuda.Event() if is_cuda else None
        self._before: list[dict[str, Any]] = []
        self.verdict: Tensor | None = None
        self.counted: list[dict[str, Any]] = []
        """States whose `step` was raised."""

    @contextmanager
    def noting(self, groups: list[dict[str, Any]], found_inf: Tensor) -> Iterator[None]:
        """Send a verdict (a scalar) to the host and note the numbers that a block changes."""
        if self.verdict is not found_inf:
            self.verdict = found_inf
            self._flag.copy_(found_inf, non_blocking=True)
            if self._copied is not None:
                self._copied.record()
        before = [_numbers(group) for group in groups]
        yield
        changed = [
            {name: value for name, value in numbers.items() if group[name] != value}
            for group, numbers in zip(groups, before, strict=True)
        ]
        # Of a step in several parts, what was before the first counts.
        earlier: list[dict[str, Any]] = self._before or [{} for _ in groups]
        self._before = [now | first for now, first in zip(changed, earlier, strict=True)]

    def settle(self, groups: list[dict[str, Any]]) -> None:
        """Take back what was counted if the step was left out; once only."""
        before, self._before = self._before, []
        counted, self.counted = self.counted, []
        if self.verdict is None:
            return
        self.verdict = None
        if self._copied is not None:
            self._copied.synchronize()
        if not self._seen:
            return
        for group, numbers in zip(groups, before, strict=bool(before)):
            group.update(numbers)
        for state in counted:
            state["step"] -= 1


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if isinstance(value, int | float)}

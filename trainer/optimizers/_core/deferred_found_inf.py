"""Correct the host's step counts after the device skipped a step.

The host counts a step before it knows whether the device skipped it. `found_inf` is copied to the
host asynchronously and read when the next step begins, by which time it has arrived; if the step
was skipped, its counts are undone. Counts are therefore exact whenever they are used or saved,
and the host never waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from trainer.optimizers._core.param_groups import Group


class DeferredFoundInf:
    """Whether the last step of an optimizer was skipped, and the counts to undo if so."""

    def __init__(self, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self._flag = torch.zeros((), pin_memory=is_cuda)
        # A view of the same pinned memory that can be read without dispatching a torch operator.
        self._seen = self._flag.numpy()
        self._copied = torch.cuda.Event() if is_cuda else None
        self._before: list[dict[str, float]] = []
        self.verdict: Tensor | None = None
        self.counted: list[dict[str, Tensor]] = []
        """States whose `step` was incremented."""

    @contextmanager
    def recording(self, groups: list[Group], found_inf: Tensor) -> Iterator[None]:
        """Start copying `found_inf` (a scalar) to the host; record the numbers a block changes."""
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
        # If a step runs in several parts, the values from before the first part are kept.
        earlier: list[dict[str, float]] = self._before or [{} for _ in groups]
        self._before = [now | first for now, first in zip(changed, earlier, strict=True)]

    def undo_if_skipped(self, groups: list[Group]) -> None:
        """Undo the counts if the step was skipped; does nothing when called again."""
        before, self._before = self._before, []
        counted, self.counted = self.counted, []
        if self.verdict is None:
            return
        self.verdict = None
        if self._copied is not None:
            # Usually returns at once, because the copy has had a whole step to arrive.
            self._copied.synchronize()
        if not self._seen:
            return
        for group, numbers in zip(groups, before, strict=bool(before)):
            group.update(numbers)
        for state in counted:
            state["step"] -= 1


def _numbers(group: Group) -> dict[str, float]:
    return {name: value for name, value in group.items() if isinstance(value, int | float)}

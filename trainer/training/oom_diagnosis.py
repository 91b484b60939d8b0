"""Find out why a GPU ran out of memory although the run fitted before.

Either the memory reserved by PyTorch is fragmented, which can happen after hours, or another
program has taken memory since the start. Neither is a reason to keep training with smaller
micro-batches.
"""

import time
from dataclasses import dataclass

import torch

from trainer.core.device import GIB, GpuProcess, list_gpu_processes
from trainer.core.events import Emit, Notice
from trainer.core.train_state import TrainState

WAITS_S = (5.0, 10.0, 30.0)
"""Seconds to wait for another program before each retry (chosen by hand)."""
# Thresholds chosen by hand and not yet tested on a GPU: PyTorch always holds some idle memory, and
# what a desktop uses varies a little.
_FRAGMENTED_SHARE = 0.15
_GROWTH_GIB = 0.25
_SHOWN = 4  # programs named in a notice


@dataclass(frozen=True)
class OomDiagnosis:
    """What the allocator and the driver reported when memory ran out."""

    reserved_gib: float = 0.0
    allocated_gib: float = 0.0
    processes: tuple[GpuProcess, ...] = ()

    @property
    def unused_gib(self) -> float:
        """Memory that PyTorch has reserved but does not use, too fragmented for the request."""
        return self.reserved_gib - self.allocated_gib

    @property
    def is_fragmented(self) -> bool:
        """Whether memory ran out because of fragmentation rather than size."""
        return self.unused_gib > _FRAGMENTED_SHARE * self.reserved_gib

    @property
    def others_gib(self) -> float:
        """Memory that other programs hold."""
        return sum(holder.memory_gib for holder in self.processes)

    def describe_processes(self) -> str:
        """List the other programs, largest first; empty if there are none."""
        named = [f"{h.name} (pid {h.pid}) {h.memory_gib:.1f} GiB" for h in self.processes[:_SHOWN]]
        more = len(self.processes) - _SHOWN
        return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def diagnose_oom(state: TrainState) -> OomDiagnosis:
    """Query the allocator and the driver; on a CPU there is nothing to query."""
    if state.device.type != "cuda":
        return OomDiagnosis()
    return OomDiagnosis(
        torch.cuda.memory_reserved(state.device) / GIB,
        torch.cuda.memory_allocated(state.device) / GIB,
        tuple(list_gpu_processes(state.machine)),
    )


class OtherProcesses:
    """Waits, for a limited time, for programs that took GPU memory since the run started."""

    def __init__(self, state: TrainState, emit: Emit) -> None:
        self._state = state
        self._emit = emit
        self._at_start_gib = diagnose_oom(state).others_gib

    def wait_for_memory(self, step: int, shortage: OomDiagnosis, num_tries: int) -> bool:
        """Wait if other programs took memory; return whether a retry makes sense."""
        taken_gib = shortage.others_gib - self._at_start_gib
        if taken_gib < _GROWTH_GIB or num_tries >= len(WAITS_S):
            return False
        if num_tries == 0:
            text = (
                f"Out of memory while other programs hold {shortage.others_gib:.1f} GiB of "
                f"{self._state.machine.name}, {taken_gib:.1f} GiB more than at the start: "
                f"{shortage.describe_processes()}. The step is retried for up to "
                f"{sum(WAITS_S):.0f} s."
            )
            remedy = (
                "Close them or move them to another GPU. Otherwise the run continues with smaller "
                "micro-batches."
            )
            self._emit(Notice("warning", text, remedy, step))
        # Half of what they took must be free again before a retry is likely to succeed.
        self._wait(WAITS_S[num_tries], shortage.others_gib - taken_gib / 2)
        return True

    def _wait(self, seconds: float, enough_gib: float) -> None:
        """Wait until others hold at most `enough_gib`, a stop is requested, or time is up."""
        stop = self._state.folder / "control" / "stop"
        end = time.monotonic() + seconds
        while time.monotonic() < end and not stop.exists():
            if diagnose_oom(self._state).others_gib <= enough_gib:
                return
            # Half a second, chosen by hand: asking the driver more often would gain nothing.
            time.sleep(0.5)

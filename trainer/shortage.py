"""Shortage: why a GPU's memory ran out although the run fitted before.

Either what is reserved lies in pieces that are too small, as happens after hours, or another
program has taken memory since the start. Neither is a reason to train in smaller pieces for good.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from trainer.device import Holder, list_holders
from trainer.events import Event, Notice
from trainer.setup import Setup

WAITS_S = (5.0, 10.0, 30.0)
"""How long another program is waited for before each new try."""
_GIB = 2**30
_IDLE_SHARE = 0.15
_TAKEN_GIB = 0.25
_SHOWN = 4

Emit = Callable[[Event], None]


@dataclass(frozen=True)
class Shortage:
    """What the allocator and the driver said at the moment when memory ran out."""

    reserved_gib: float = 0.0
    allocated_gib: float = 0.0
    holders: tuple[Holder, ...] = ()

    @property
    def idle_gib(self) -> float:
        """What torch has reserved and nobody uses; it could not be joined for what was asked."""
        return self.reserved_gib - self.allocated_gib

    @property
    def is_in_pieces(self) -> bool:
        """Whether so much lies idle that memory ran out by its order, not by its size."""
        return self.idle_gib > _IDLE_SHARE * self.reserved_gib

    @property
    def taken_gib(self) -> float:
        """What other programs hold."""
        return sum(holder.memory_gib for holder in self.holders)

    def name_holders(self) -> str:
        """Name the other programs, the largest first; empty if there are none."""
        named = [f"{h.name} (pid {h.pid}) {h.memory_gib:.1f} GiB" for h in self.holders[:_SHOWN]]
        more = len(self.holders) - _SHOWN
        return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def read_shortage(setup: Setup) -> Shortage:
    """Ask allocator and driver; on a CPU there is nothing to ask."""
    if setup.device.type != "cuda":
        return Shortage()
    return Shortage(
        torch.cuda.memory_reserved(setup.device) / _GIB,
        torch.cuda.memory_allocated(setup.device) / _GIB,
        tuple(list_holders(setup.machine)),
    )


class Others:
    """Waits for programs that took a GPU's memory since the run started, not for ever."""

    def __init__(self, setup: Setup, emit: Emit) -> None:
        self._setup = setup
        self._emit = emit
        self._at_start_gib = read_shortage(setup).taken_gib

    def are_waited_for(self, step: int, shortage: Shortage, num_tries: int) -> bool:
        """Wait if other programs took memory; return whether it is worth another try."""
        taken_gib = shortage.taken_gib - self._at_start_gib
        if taken_gib < _TAKEN_GIB or num_tries >= len(WAITS_S):
            return False
        if num_tries == 0:
            text = (
                f"Memory ran out while other programs hold {shortage.taken_gib:.1f} GiB of "
                f"{self._setup.machine.name}, {taken_gib:.1f} GiB more than at the start: "
                f"{shortage.name_holders()}. The step is tried again for up to {sum(WAITS_S):.0f} "
                "s."
            )
            remedy = "End them, or let them use another GPU. After that, smaller pieces are tried."
            self._emit(Notice("warning", text, remedy, step))
        self._wait(WAITS_S[num_tries], shortage.taken_gib - taken_gib / 2)
        return True

    def _wait(self, seconds: float, enough_gib: float) -> None:
        """Wait until others hold no more than that, a person asks to stop, or time is up."""
        stop = self._setup.folder / "control" / "stop"
        end = time.monotonic() + seconds
        while time.monotonic() < end and not stop.exists():
            if read_shortage(self._setup).taken_gib <= enough_gib:
                return
            time.sleep(0.5)

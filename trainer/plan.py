"""Plan: how far a run goes. A person may move its end; `run.json` stays, the log tells of it.

The schedule keeps the length it was drawn for: the steps planned at first are the same whether or
not more are added, and the added ones go on where its curve ends.
"""

from collections.abc import Callable

from trainer.distributed import share_number
from trainer.events import Event, PlanChanged
from trainer.requests import take_asked_steps
from trainer.setup import Setup

LEAST_SHARE = 0.05
"""Of its peak, the rate of added steps where the schedule has come down to zero."""
_SAMPLES = 200

Emit = Callable[[Event], None]


def take_up_change(setup: Setup, step: int, emit: Emit) -> int | None:
    """Return where the run ends after a change that was just asked for, told to the log; or None.

    Rank 0 alone may ask; the others hear of it by `share_number`.
    """
    wanted = take_asked_steps(setup.folder)
    if wanted is None:
        return None
    last_step = max(step, wanted)
    emit(PlanChanged(step, last_step))
    return last_step


def take_up_plan(setup: Setup, told: PlanChanged | None, emit: Emit) -> None:
    """Give an assembled run the end that was asked for last: just now, or as its log tells."""
    setup.lr_factor = hold_rate(setup.lr_factor, setup.last_step)
    last_step = told.last_step if told is not None else setup.last_step
    if setup.world.is_main:
        last_step = take_up_change(setup, setup.first_step - 1, emit) or last_step
    setup.last_step = share_number(setup.world, last_step)


def hold_rate(factor: Callable[[int], float], planned: int) -> Callable[[int], float]:
    """Return a schedule whose steps after the planned ones are never without a rate."""
    stride = max(1, planned // _SAMPLES)
    least = LEAST_SHARE * max(factor(step) for step in range(1, planned + 1, stride))

    def held(step: int) -> float:
        return factor(step) if step <= planned else factor(step) or least

    return held

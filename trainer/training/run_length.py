"""Extend or shorten a run while it trains.

`run.json` never changes; the new last step is an event in the log. The learning-rate schedule keeps
its original length, so the steps planned first are the same whether or not more are added. Added
steps continue at the rate where the curve ends.
"""

from collections.abc import Callable

from trainer.core.events import Event, PlanChanged
from trainer.core.train_state import Setup
from trainer.runs.control import take_asked_steps
from trainer.training.distributed import share_number

LEAST_SHARE = 0.05
"""Rate of added steps, relative to the peak, if the schedule ended at zero (chosen by hand)."""
_SAMPLES = 200  # enough points to find the peak of any schedule without evaluating every step

Emit = Callable[[Event], None]


def take_up_change(setup: Setup, step: int, emit: Emit) -> int | None:
    """Apply a pending request to change the last step; return it, or None without a request.

    Call this on rank 0 only; the other ranks receive the result through `share_number`.
    """
    wanted = take_asked_steps(setup.folder)
    if wanted is None:
        return None
    last_step = max(step, wanted)  # steps that are already done cannot be removed
    emit(PlanChanged(step, last_step))
    return last_step


def take_up_plan(setup: Setup, told: PlanChanged | None, emit: Emit) -> None:
    """Set the last step of an assembled run from a pending request or from its event log."""
    setup.lr_factor = hold_rate(setup.lr_factor, setup.last_step)
    last_step = told.last_step if told is not None else setup.last_step
    if setup.world.is_main:
        last_step = take_up_change(setup, setup.first_step - 1, emit) or last_step
    setup.last_step = share_number(setup.world, last_step)


def hold_rate(factor: Callable[[int], float], planned: int) -> Callable[[int], float]:
    """Return a schedule that never falls to zero after the planned steps."""
    stride = max(1, planned // _SAMPLES)
    least = LEAST_SHARE * max(factor(step) for step in range(1, planned + 1, stride))

    def held(step: int) -> float:
        return factor(step) if step <= planned else factor(step) or least

    return held

"""Extend or shorten a run while it trains.

`run.json` never changes; the new last step is an event in the log. The learning-rate schedule keeps
its original length, so the steps planned first are the same whether or not more are added. Added
steps continue at the rate where the curve ends.
"""

from functools import cache

from trainer.core.events import Emit, PlanChanged
from trainer.core.options import Options
from trainer.core.specs import Schedule
from trainer.core.train_state import TrainState
from trainer.runs.control import pop_step_request
from trainer.training.distributed import share_number

MIN_RATE_SHARE = 0.05
"""Rate of added steps, relative to the peak, if the schedule ended at zero (chosen by hand)."""
_SAMPLES = 200  # enough points to find the peak of any schedule without evaluating every step


def apply_step_request(state: TrainState, step: int, emit: Emit) -> int | None:
    """Apply a pending request to change the last step; return it, or None without a request.

    Call this on rank 0 only; the other ranks receive the result through `share_number`.
    """
    wanted = pop_step_request(state.folder)
    if wanted is None:
        return None
    last_step = max(step, wanted)  # steps that are already done cannot be removed
    emit(PlanChanged(step, last_step))
    return last_step


def restore_run_length(state: TrainState, told: PlanChanged | None, emit: Emit) -> None:
    """Set the last step of an assembled run from a pending request or from its event log."""
    last_step = told.last_step if told is not None else state.last_step
    if state.world.is_main:
        last_step = apply_step_request(state, state.first_step - 1, emit) or last_step
    state.last_step = share_number(state.world, last_step)


def lr_factor(state: TrainState, step: int) -> float:
    """Return the factor on the peak rate at a step; it never falls to zero after planned steps."""
    factor = state.schedule.factor(step, state.planned_steps, state.schedule_options)
    if factor or step <= state.planned_steps:
        return factor
    return MIN_RATE_SHARE * _peak(state.schedule, state.schedule_options, state.planned_steps)


@cache  # the loop asks at every added step
def _peak(schedule: Schedule, options: Options, planned: int) -> float:
    stride = max(1, planned // _SAMPLES)
    return max(schedule.factor(step, planned, options) for step in range(1, planned + 1, stride))

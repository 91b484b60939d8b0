"""Recover from NaN: skip a few steps, then roll back to a checkpoint, then stop.

The run rolls back once, to its latest checkpoint, and continues in full precision or with a lower
learning rate. If that doesn't help, it stops and names the clips.
"""

import math
from dataclasses import replace

from trainer.core.errors import TimbreError
from trainer.core.events import Emit, Notice
from trainer.core.train_state import TrainState
from trainer.training.oom_recovery import RestartFromCheckpoint

# Skipped steps before the run rolls back: 3 in a row, or 10 of the last 100. Chosen by hand: a
# single bad clip comes back once per epoch, while weights that are beyond repair fail every step.
MOST_IN_A_ROW = 3
MOST_AMONG = 10
_AMONG_STEPS = 100
_LOWER_RATE = 1 / 3  # chosen by hand: about half an order of magnitude
# A GradScaler starts at 65536 and halves its scale after each overflow. One that has come down to
# this has found no scale at which the gradients are finite. Chosen by hand.
_SMALLEST_SCALE = 1e-6
_SHOWN_CLIPS = 8  # names that fit in a notice


class LossNotFinite(TimbreError):
    """The loss or the gradients stay NaN or infinite; no such step has changed the weights."""

    exit_code = 20  # the supervisor does not restart a run that ends with this code


class NanRecovery:
    """Watches losses and gradient norms, and decides when a run rolls back or stops.

    The updates of NaN steps have already been skipped. The count of skipped steps is part of the
    run's progress, so a resume does not reset it.
    """

    def __init__(self, state: TrainState, emit: Emit) -> None:
        self._state = state
        self._emit = emit

    def record(self, step: int, loss: float, grad_norm: float) -> None:
        """Record the loss and the gradient norm of a step.

        Raises:
            RestartFromCheckpoint: the run rolls back to its latest checkpoint.
            LossNotFinite: the run has rolled back before, or rolling back is turned off.
        """
        progress = self._state.progress
        if math.isfinite(loss) and math.isfinite(grad_norm):
            progress["skipped_in_a_row"] = 0
            return
        scaler = self._state.precision.scaler
        # In fp16 a finite loss with infinite gradients only means that the GradScaler's scale is
        # still too large; it halves it and goes on.
        is_calibrating = scaler.is_enabled() and math.isfinite(loss)
        if is_calibrating and scaler.get_scale() >= _SMALLEST_SCALE:
            return
        recent = [each for each in progress.get("skipped", []) if each > step - _AMONG_STEPS]
        progress["skipped"] = [*recent, step]
        progress["skipped_in_a_row"] = progress.get("skipped_in_a_row", 0) + 1
        what = "loss" if not math.isfinite(loss) else "gradient"
        clips = _name_clips(self._state, [step])
        text = f"Step {step} was skipped: its {what} is NaN or infinite. Clips: {clips}."
        self._emit(Notice("warning", text, "Listen to these clips if it happens again.", step))
        is_too_often = len(progress["skipped"]) > MOST_AMONG
        if progress["skipped_in_a_row"] > MOST_IN_A_ROW or is_too_often or is_calibrating:
            self._give_up(step, what)

    def _give_up(self, step: int, what: str) -> None:
        state, steps = self._state, self._state.progress.get("skipped", [])
        named = ", ".join(map(str, steps[-MOST_IN_A_ROW - 1 :]))
        what_happened = f"The {what} is NaN or infinite (steps {named})"
        if state.adapted.rollbacks or not state.config.training.roll_back:
            raise LossNotFinite(
                f"{what_happened}. These updates were skipped, so the checkpoints are not "
                f"affected. Clips: {_name_clips(state, steps)}. Listen to them and remove the bad "
                "ones, or start from the last checkpoint with a lower learning rate or without "
                "mixed precision."
            )
        # Rounding is the more likely cause, and full precision keeps the learning rate as chosen.
        is_rounded = state.precision.autocast_dtype is not None
        adapted = replace(
            state.adapted,
            step=step,
            reason=what_happened,
            rollbacks=1,
            full_precision=is_rounded or state.adapted.full_precision,
            rate=state.adapted.rate * (1.0 if is_rounded else _LOWER_RATE),
        )
        self._emit(adapted)
        change = "in full precision" if is_rounded else "with a third of the learning rate"
        text = f"{what_happened}. The run rolls back to its last checkpoint and continues {change}."
        remedy = "If it happens again, the run stops and names the clips."
        self._emit(Notice("warning", text, remedy, step))
        raise RestartFromCheckpoint


def _name_clips(state: TrainState, steps: list[int]) -> str:
    """Return the names of the clips of some steps, those that occur most often first."""
    ids = [clip_id for step in steps for clip_id in state.train_batches.clip_ids(step)]
    by_count = sorted(dict.fromkeys(ids), key=lambda clip_id: -ids.count(clip_id))
    shown = ", ".join(by_count[:_SHOWN_CLIPS])
    more = len(by_count) - _SHOWN_CLIPS
    return f"{shown} and {more} more" if more > 0 else shown

"""Divergence: steps without a finite loss or gradient are left out, a few; then the run goes back.

It goes back once, to its newest checkpoint, in full precision or with a lower rate. If that does
not help, it stops and names the clips.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from trainer.adapting import StartAgain
from trainer.errors import TimbreError
from trainer.events import Event, Notice
from trainer.setup import Setup

MOST_IN_A_ROW = 3
MOST_AMONG = 10
_AMONG_STEPS = 100
_LOWER_RATE = 1 / 3
_SMALLEST_SCALE = 1e-6
"""A GradScaler that comes down to this has found no scale at which gradients are finite."""
_SHOWN_CLIPS = 8

Emit = Callable[[Event], None]


class LossNotFinite(TimbreError):
    """Loss or gradients stay NaN or infinite; the weights are those before the first such step."""

    exit_code = 20


class Divergence:
    """Watches losses and gradient norms as they are read; their updates were left out already.

    Its count is part of the run's progress, so that a resume does not begin it anew.
    """

    def __init__(self, setup: Setup, emit: Emit) -> None:
        self._setup = setup
        self._emit = emit

    def see(self, step: int, loss: float, grad_norm: float) -> None:
        """Take the loss and the gradient norm of a step.

        Raises:
            StartAgain: the run goes back to its newest checkpoint.
            LossNotFinite: it has gone back before, or may not.
        """
        progress = self._setup.progress
        if math.isfinite(loss) and math.isfinite(grad_norm):
            progress["skipped_in_a_row"] = 0
            return
        scaler = self._setup.precision.scaler
        is_calibrating = scaler.is_enabled() and math.isfinite(loss)
        if is_calibrating and scaler.get_scale() >= _SMALLEST_SCALE:
            return
        recent = [each for each in progress.get("skipped", []) if each > step - _AMONG_STEPS]
        progress["skipped"] = [*recent, step]
        progress["skipped_in_a_row"] = progress.get("skipped_in_a_row", 0) + 1
        what = "loss" if not math.isfinite(loss) else "gradient"
        clips = _name_clips(self._setup, [step])
        text = f"Step {step} was left out: its {what} is no finite number. Clips: {clips}."
        self._emit(Notice("warning", text, "Listen to these clips if it happens again.", step))
        is_too_often = len(progress["skipped"]) > MOST_AMONG
        if progress["skipped_in_a_row"] > MOST_IN_A_ROW or is_too_often or is_calibrating:
            self._give_up(step, what)

    def _give_up(self, step: int, what: str) -> None:
        setup, steps = self._setup, self._setup.progress["skipped"]
        named = ", ".join(map(str, steps[-MOST_IN_A_ROW - 1 :]))
        what_happened = f"The {what} is no finite number (steps {named})"
        if setup.adapted.rollbacks or not setup.config.training.roll_back:
            raise LossNotFinite(
                f"{what_happened}. None of these updates was made, and no checkpoint holds one. "
                f"The clips: {_name_clips(setup, steps)}. Listen to them and take out what is "
                "wrong; or start from the last checkpoint with a lower learning rate, or with "
                "mixed precision off."
            )
        is_rounded = setup.precision.autocast_dtype is not None
        adapted = replace(
            setup.adapted,
            step=step,
            reason=what_happened,
            rollbacks=1,
            full_precision=is_rounded or setup.adapted.full_precision,
            rate=setup.adapted.rate * (1.0 if is_rounded else _LOWER_RATE),
        )
        self._emit(adapted)
        change = "in full precision" if is_rounded else "with a third of the learning rate"
        text = f"{what_happened}. The run goes back to its last checkpoint, {change}."
        remedy = "If it happens again, the run stops and names the clips."
        self._emit(Notice("warning", text, remedy, step))
        raise StartAgain


def _name_clips(setup: Setup, steps: list[int]) -> str:
    """Return the clips of steps in words, those first that are in most of them."""
    ids = [clip_id for step in steps for clip_id in setup.train_batches.clip_ids(step)]
    by_count = sorted(dict.fromkeys(ids), key=lambda clip_id: -ids.count(clip_id))
    shown = ", ".join(by_count[:_SHOWN_CLIPS])
    more = len(by_count) - _SHOWN_CLIPS
    return f"{shown} and {more} more" if more > 0 else shown

"""Verification: the first steps after a resume are compared with what the log holds of them.

A run that was killed did some steps after its last checkpoint. A resume does them again, and what
it promises can be seen at once: the same loss and the same gradient norm, to the last bit.
"""

import math
from collections.abc import Callable, Mapping, Sequence

from trainer.events import Event, Notice, ResumeVerified, StepDone

MOST_STEPS = 20
_COMPARED = ("train/loss", "train/grad_norm")
_SLIGHT = 1e-4

Emit = Callable[[Event], None]


class Verification:
    """Passes events on; after the steps that are known from before, it says how they compare.

    `columns` are those of the log before the resume, `first_step` is where that goes on.
    """

    def __init__(self, columns: Mapping[str, Sequence[float]], first_step: int) -> None:
        names = [name for name in _COMPARED if name in columns]
        rows = zip(columns.get("step", ()), *(columns[name] for name in names), strict=True)
        known = {int(row[0]): row[1:] for row in rows if row[0] >= first_step}
        self._known = dict(sorted(known.items())[:MOST_STEPS]) if names else {}
        self._names = names
        self._compared: list[int] = []
        self._difference, self._differs_from = 0.0, 0

    def watch(self, emit: Emit) -> Emit:
        """Return an `emit` that adds the result."""

        def emit_and_compare(event: Event) -> None:
            emit(event)
            if isinstance(event, StepDone) and event.step in self._known:
                self._compare(event)
                if not self._known:
                    self._tell(event.step, emit)

        return emit_and_compare

    def _compare(self, event: StepDone) -> None:
        before = self._known.pop(event.step)
        self._compared.append(event.step)
        for name, value in zip(self._names, before, strict=True):
            difference = _difference(value, event.metrics[name])
            if difference > 0 and not self._difference:
                self._differs_from = event.step
            self._difference = max(self._difference, difference)

    def _tell(self, step: int, emit: Emit) -> None:
        emit(ResumeVerified(step, len(self._compared), self._difference))
        steps = f"steps {self._compared[0]} to {step}"
        if len(self._compared) == 1:
            steps = f"step {step}"
        if not self._difference:
            text = f"The resume is verified: {steps}, done before the interruption too, came out "
            emit(Notice("info", f"{text}equal to the last bit.", "", step))
            return
        text = (
            f"Done again after the resume, {steps} differ by up to {self._difference:.1e} of loss "
            f"and gradient norm as they were logged before, first at step {self._differs_from}."
        )
        remedy = (
            "A GPU adds up in another order each time unless 'Reproducible' is ticked; other "
            "changes since the last checkpoint are told above."
        )
        level = "info" if self._difference < _SLIGHT else "warning"
        emit(Notice(level, text, remedy, step))


def _difference(before: float, now: float) -> float:
    """Return the relative difference of two values; values that are no numbers are alike."""
    if before == now or not (math.isfinite(before) or math.isfinite(now)):
        return 0.0
    size = max(abs(before), abs(now))
    return abs(before - now) / size if math.isfinite(size) else math.inf

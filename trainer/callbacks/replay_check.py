"""Check that a resume is exact by comparing its first steps with the log.

A killed run has logged some steps after its last checkpoint. The resumed run repeats them and must
reach the same loss and gradient norm, bit for bit.
"""

import math
from collections.abc import Mapping, Sequence

from trainer.core.events import Event, Notice, ResumeVerified, StepDone
from trainer.core.metrics import GRAD_NORM, TRAIN_LOSS

MOST_STEPS = 20  # chosen by hand: a real difference shows in the first steps
_COMPARED = (TRAIN_LOSS, GRAD_NORM)
_SLIGHT = 1e-4  # relative; chosen by hand, above what another order of summation makes of fp32


class ReplayCheck:
    """A subscriber that reports the comparison after the last repeated step.

    `columns` holds the metrics logged before the resume; `first_step` is the resume's first step.
    """

    def __init__(self, columns: Mapping[str, Sequence[float]], first_step: int) -> None:
        names = [name for name in _COMPARED if name in columns]
        rows = zip(columns.get("step", ()), *(columns[name] for name in names), strict=True)
        known = {int(row[0]): row[1:] for row in rows if row[0] >= first_step}
        self._known = dict(sorted(known.items())[:MOST_STEPS]) if names else {}
        self._names = names
        self._compared: list[int] = []
        # The largest difference decides how serious it is; the first step that differs
        # shows where to look.
        self._difference, self._differs_from = 0.0, 0

    def __call__(self, event: Event) -> list[Event]:
        """Compare a step, and return the result after the last repeated one."""
        if not isinstance(event, StepDone) or event.step not in self._known:
            return []
        self._compare(event)
        return [] if self._known else self._report(event.step)

    def _compare(self, event: StepDone) -> None:
        before = self._known.pop(event.step)
        self._compared.append(event.step)
        for name, value in zip(self._names, before, strict=True):
            difference = _difference(value, event.metrics[name])
            if difference > 0 and not self._difference:
                self._differs_from = event.step
            self._difference = max(self._difference, difference)

    def _report(self, step: int) -> list[Event]:
        verified = ResumeVerified(step, len(self._compared), self._difference)
        steps = f"steps {self._compared[0]} to {step}"
        if len(self._compared) == 1:
            steps = f"step {step}"
        if not self._difference:
            text = f"The resume is exact: {steps} gave the same results as before the interruption"
            return [verified, Notice("info", f"{text}, bit for bit.", "", step)]
        text = (
            f"After the resume, loss or gradient norm of {steps} differ from the logged values by "
            f"up to {self._difference:.1e} (relative), first at step {self._differs_from}."
        )
        remedy = (
            "A GPU sums in a different order each time unless 'Reproducible' is ticked. Other "
            "changes since the last checkpoint are listed above."
        )
        level = "info" if self._difference < _SLIGHT else "warning"
        return [verified, Notice(level, text, remedy, step)]


def _difference(before: float, now: float) -> float:
    """Return the relative difference of two values; two non-finite values count as equal."""
    if before == now or not (math.isfinite(before) or math.isfinite(now)):
        return 0.0
    size = max(abs(before), abs(now))
    return abs(before - now) / size if math.isfinite(size) else math.inf

"""What is due after a step: validation, preview, save, stop; the same answer on every rank."""

import time
from typing import Any

from trainer.distributed import agree
from trainer.setup import Cadence, Setup

DEEDS = ("validate", "preview", "save", "stop")


class Timetable:
    """Decides from cadences and from the requests in the run's control folder."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._cadences = {
            "validate": setup.validate_every,
            "preview": setup.preview_every,
            "save": setup.save_every,
        }
        now = time.monotonic()
        self._done_at = dict.fromkeys(self._cadences, now)
        if self.is_out_of_patience():
            # Who resumes a run that stopped early wants it to try as long again.
            setup.progress["since_best"] = 0

    def due_after(self, step: int) -> set[str]:
        """Return what is due after a step; rank 0 decides."""
        setup = self._setup
        due = {
            deed
            for deed, cadence in self._cadences.items()
            if _is_due(cadence, step, time.monotonic() - self._done_at[deed])
        }
        if step == setup.last_step:
            wants_preview = setup.preview_every != Cadence()
            due |= {"validate", "save", "preview"} if wants_preview else {"validate", "save"}
        control = setup.folder / "control"
        for request in ("stop", "save", "preview"):
            if (control / request).exists():
                due.add(request)
        return agree(setup.world, due, DEEDS)

    def done(self, deeds: set[str]) -> None:
        """Note that deeds were done: their requests are answered, their minutes start anew."""
        now = time.monotonic()
        for deed in deeds & self._cadences.keys():
            self._done_at[deed] = now
            (self._setup.folder / "control" / deed).unlink(missing_ok=True)

    def is_out_of_patience(self) -> bool:
        """Whether validation has not improved for as long as the run's patience allows."""
        patience = self._setup.config.training.patience
        return patience > 0 and self._setup.progress.get("since_best", 0) >= patience


def note_validation(setup: Setup, step: int, metrics: dict[str, float]) -> bool:
    """Keep the validation in the run's progress and tell whether it is the best so far."""
    progress: dict[str, Any] = setup.progress
    progress["validation"] = metrics | {"step": step}
    is_best = metrics["val/loss"] < progress.get("best_loss", float("inf"))
    progress["since_best"] = 0 if is_best else progress.get("since_best", 0) + 1
    if is_best:
        progress["best_loss"] = metrics["val/loss"]
    return is_best


def _is_due(cadence: Cadence, step: int, elapsed_s: float) -> bool:
    if cadence.steps is not None:
        return step % cadence.steps == 0
    return cadence.minutes is not None and elapsed_s >= 60 * cadence.minutes

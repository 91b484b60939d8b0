"""Decide what is due after a step (validate, preview, save, stop), the same on every rank."""

import time
from collections.abc import Iterator

from trainer.core.events import Emit
from trainer.core.metrics import VAL_LOSS
from trainer.core.train_state import Cadence, TrainState
from trainer.training.distributed import agree, share_number
from trainer.training.run_length import apply_step_request

ACTIONS = ("validate", "preview", "save", "stop", "plan")


class Triggers:
    """Decides what is due from the configured intervals and the requests in `control/`."""

    def __init__(self, state: TrainState, emit: Emit) -> None:
        self._state = state
        self._emit = emit
        self._cadences = {
            "validate": state.validate_every,
            "preview": state.preview_every,
            "save": state.save_every,
        }
        now = time.monotonic()
        self._done_at = dict.fromkeys(self._cadences, now)
        if self.should_stop_early():
            # A run that stopped early and is resumed gets its full patience again.
            state.progress["since_best"] = 0

    def steps(self) -> Iterator[int]:
        """Yield the steps to train; the last one may change while the run is training."""
        step = self._state.first_step
        while step <= self._state.last_step:
            yield step
            step += 1

    def due_after(self, step: int) -> set[str]:
        """Return the actions due after a step, as rank 0 decides."""
        state = self._state
        changed = apply_step_request(state, step, self._emit) if state.world.is_main else None
        due = {
            action
            for action, cadence in self._cadences.items()
            if _is_due(cadence, step, time.monotonic() - self._done_at[action])
        }
        # The last step always gets a validation and a checkpoint, whatever the intervals say.
        if step == (changed or state.last_step):
            wants_preview = state.preview_every != Cadence()
            due |= {"validate", "save", "preview"} if wants_preview else {"validate", "save"}
        control = state.folder / "control"
        for request in ("stop", "save", "preview"):
            if (control / request).exists():
                due.add(request)
        if changed is not None:
            due.add("plan")
        # Ranks must agree: files and clocks differ between them, and a rank that alone validates
        # or stops would leave the others waiting in a collective operation.
        due = agree(state.world, due, ACTIONS)
        if "plan" in due:
            state.last_step = share_number(state.world, changed or 0)
        return due - {"plan"}

    def mark_done(self, actions: set[str]) -> None:
        """Mark actions as done: remove their requests and restart their intervals."""
        now = time.monotonic()
        for action in actions & self._cadences.keys():
            self._done_at[action] = now
            (self._state.folder / "control" / action).unlink(missing_ok=True)

    def should_stop_early(self) -> bool:
        """Return whether validation has not improved for as many times as the patience allows."""
        patience = self._state.config.training.patience
        return patience > 0 and self._state.progress.get("since_best", 0) >= patience


def record_validation(state: TrainState, step: int, metrics: dict[str, float]) -> bool:
    """Store a validation in the run's progress and return whether it is the best so far."""
    progress = state.progress
    progress["validation"] = metrics | {"step": step}
    is_best = metrics[VAL_LOSS] < progress.get("best_loss", float("inf"))
    progress["since_best"] = 0 if is_best else progress.get("since_best", 0) + 1
    if is_best:
        progress["best_loss"] = metrics[VAL_LOSS]
    return is_best


def _is_due(cadence: Cadence, step: int, elapsed_s: float) -> bool:
    if cadence.steps is not None:
        return step % cadence.steps == 0
    return cadence.minutes is not None and elapsed_s >= 60 * cadence.minutes

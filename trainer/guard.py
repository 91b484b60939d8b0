"""First-steps guard: tells within 100 steps that an optimizer does harm, and what to do instead.

It watches the events of a run, not the loop: what it needs is what the log gets anyway.
"""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from trainer.config import Choice, RunConfig
from trainer.entries import find_base_lr, resolve
from trainer.events import CheckpointSaved, Event, Notice, StepDone

FIRST_STEPS = 100
_WINDOW = 5
"""Steps whose median counts, so that one odd batch raises no alarm."""
_RISE_SHARE = 0.5
_BATCH_SHARE = 0.25
"""How much harder than the first batch the next ones may be."""
_EXPLOSION = 20.0
_LOST_LOSSES = 3
_LOST_NORMS = 20
"""Gradient norms in a row that are no numbers; a GradScaler loses a few while it calibrates."""
_BLAME = "The optimizer does harm with these settings."

Emit = Callable[[Event], None]


def find_trouble(losses: Sequence[float], grad_norms: Sequence[float]) -> str | None:
    """Say what is wrong with the first steps of a run, from their losses and gradient norms.

    A loss that is no number three times in a row (single ones are left out by the loop); a loss
    far above its start (by half of it, in the median of five steps); gradient norms 20 times their
    median so far. AdamW at its usual rate stays far inside all three.
    """
    if len(losses) >= _LOST_LOSSES and not any(map(math.isfinite, losses[-_LOST_LOSSES:])):
        return "The loss is no number."
    losses = [loss for loss in losses if math.isfinite(loss)]
    if has_risen(losses):
        start, now = _start_of(losses), median(losses[-_WINDOW:])
        return f"The loss rose from {start:.4g} to {now:.4g}."
    return _explosion(grad_norms)


def has_risen(losses: Sequence[float], share: float = _RISE_SHARE) -> bool:
    """Whether the newest losses lie above the first ones by a share of them."""
    if len(losses) < 2 * _WINDOW:
        return False
    start = _start_of(losses)
    return median(losses[-_WINDOW:]) - start > share * abs(start)


def are_sane(losses: Sequence[float]) -> bool:
    """Whether weights after these first steps are worth going on from.

    The best of few validations may still be one of ruined weights.
    """
    if not losses:
        return True
    now = median(losses[-3:])
    return math.isfinite(now) and now - losses[0] <= _BATCH_SHARE * abs(losses[0])


def _start_of(losses: Sequence[float]) -> float:
    """Return where the loss began: by five batches, unless the first update already ruined them.

    Only the first loss is certainly one of the initial weights.
    """
    return min(median(losses[:_WINDOW]), losses[0] + _BATCH_SHARE * abs(losses[0]))


class Guard:
    """Passes events on; among the first steps it adds one Notice when they go wrong.

    `lr` is the run's peak learning rate. `known` are the metric columns of steps that an earlier
    process did: a resumed run is judged as a whole, and nothing is told twice.
    """

    def __init__(
        self, folder: Path, config: RunConfig, lr: float, known: Mapping[str, Sequence[float]]
    ) -> None:
        self._folder, self._config, self._lr = folder, config, lr
        self._losses = list(known.get("train/loss", ()))[:FIRST_STEPS]
        self._grad_norms = list(known.get("train/grad_norm", ()))[:FIRST_STEPS]
        self._good: Path | None = None
        self._is_silent = find_trouble(self._losses, self._grad_norms) is not None

    def watch(self, emit: Emit) -> Emit:
        """Return an `emit` that adds the guard's word."""

        def emit_and_judge(event: Event) -> None:
            emit(event)
            if isinstance(event, CheckpointSaved) and event.best and are_sane(self._losses):
                self._good = self._folder / event.path
            if isinstance(event, StepDone) and event.step <= FIRST_STEPS and not self._is_silent:
                self._judge(event, emit)

        return emit_and_judge

    def _judge(self, event: StepDone, emit: Emit) -> None:
        self._losses.append(event.metrics["train/loss"])
        self._grad_norms.append(event.metrics["train/grad_norm"])
        trouble = find_trouble(self._losses, self._grad_norms)
        if trouble is not None:
            self._is_silent = True
            remedy = describe_rescue(self._folder, self._config, self._lr, self._good)
            emit(Notice("warning", f"{trouble} {_BLAME}", remedy, event.step, offer="rescue"))


def rescue_config(config: RunConfig, lr: float, checkpoint: Path | None) -> RunConfig:
    """Return the same run with AdamW at its usual rate, from the last good checkpoint if any.

    A run that had AdamW already keeps it, with a tenth of its rate `lr` or the family's usual one,
    whichever is less.
    """
    options: dict[str, Any] = {}
    if config.optimizer.name == "adamw":
        usual = find_base_lr(resolve(replace(config, optimizer=Choice("adamw"))))
        options = config.optimizer.options | {"lr": min(lr / 10, usual)}
    base = str(checkpoint) if checkpoint else config.base
    return replace(config, optimizer=Choice("adamw", options), base=base)


def describe_rescue(folder: Path, config: RunConfig, lr: float, checkpoint: Path | None) -> str:
    """Say how to start the run of `rescue_config`, as a sentence with its command."""
    rescue = rescue_config(config, lr, checkpoint)
    words = ["train", "--config", str(folder / "run.json"), "--run", f"{folder}-adamw"]
    words += ["--optimizer", "adamw"]
    words += ["--lr", f"{rescue.optimizer.options['lr']:g}"] if rescue.optimizer.options else []
    words += ["--base", str(checkpoint)] if checkpoint else []
    change = "a lower learning rate" if config.optimizer.name == "adamw" else "AdamW"
    source = "the last good checkpoint" if checkpoint else "its start"
    command = shlex.join(["python", "-m", "trainer", *words])
    return f"Stop it and start the same run with {change} from {source}: {command}"


def _explosion(grad_norms: Sequence[float]) -> str | None:
    lost = [not math.isfinite(norm) for norm in grad_norms[-_LOST_NORMS:]]
    if len(lost) == _LOST_NORMS and all(lost):
        return f"The gradients of {_LOST_NORMS} steps in a row are no numbers."
    finite = [norm for norm in grad_norms if math.isfinite(norm)]
    if len(finite) < 3 * _WINDOW:
        return None
    usual, now = median(finite[:-_WINDOW]), median(finite[-_WINDOW:])
    if usual <= 0 or now <= _EXPLOSION * usual:
        return None
    return f"The gradient norm grew from {usual:.3g} to {now:.3g}."

"""Detect within the first 100 steps that a run diverges, and say what to do instead.

The losses and gradient norms come from the run's events, so the loop does not know about this
check and no value is read from the GPU for it.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from trainer.config.resolve import find_base_lr, resolve
from trainer.core.events import CheckpointSaved, Event, Notice, StepDone
from trainer.core.metrics import GRAD_NORM, TRAIN_LOSS
from trainer.core.run_config import Choice, RunConfig

# All thresholds are chosen by hand. AdamW at its usual learning rate stays far inside all of them.
FIRST_STEPS = 100  # later, the alerts about a diverging loss take over
_WINDOW = 5  # steps whose median counts, so that one unusual batch raises no alarm
_RISE_SHARE = 0.5  # rise of the loss above its start, as a share of the start
_BATCH_SHARE = 0.25  # how much harder than the first batch the next ones may be, as a share
_EXPLOSION = 20.0  # times the median so far; the spikes of a warm-up must not reach it
_LOST_LOSSES = 3  # NaN losses in a row; the loop skips single ones
_LOST_NORMS = 20  # infinite norms in a row; a GradScaler causes a few while it calibrates
_BLAME = "Training is diverging with these optimizer settings."


def find_instability(losses: Sequence[float], grad_norms: Sequence[float]) -> str | None:
    """Say what is wrong with the first steps of a run; None if nothing is.

    Trouble is a loss that is NaN or infinite three times in a row, a loss 50 % above its start
    (median of five steps), or gradient norms 20 times their median so far.
    """
    if len(losses) >= _LOST_LOSSES and not any(map(math.isfinite, losses[-_LOST_LOSSES:])):
        return "The loss is NaN or infinite."
    losses = [loss for loss in losses if math.isfinite(loss)]
    if has_risen(losses):
        start, now = _start_of(losses), median(losses[-_WINDOW:])
        return f"The loss rose from {start:.4g} to {now:.4g}."
    return _find_explosion(grad_norms)


def has_risen(losses: Sequence[float], share: float = _RISE_SHARE) -> bool:
    """Whether the latest losses exceed the first ones by a share of them."""
    # Two windows that do not overlap.
    if len(losses) < 2 * _WINDOW:
        return False
    start = _start_of(losses)
    return median(losses[-_WINDOW:]) - start > share * abs(start)


def are_stable(losses: Sequence[float]) -> bool:
    """Whether the weights after these first steps are good enough to continue from.

    Being the best of a few validations is not enough: all of them may be of ruined weights.
    """
    if not losses:
        return True
    now = median(losses[-3:])  # 3: the newest losses, with room for one unusual batch
    return math.isfinite(now) and now - losses[0] <= _BATCH_SHARE * abs(losses[0])


def _start_of(losses: Sequence[float]) -> float:
    """Return the loss at the start: the median of five steps, but at most 25 % above the first.

    Only the first loss is certainly one of the initial weights; the first update may already have
    ruined them.
    """
    return min(median(losses[:_WINDOW]), losses[0] + _BATCH_SHARE * abs(losses[0]))


class InstabilityMonitor:
    """A subscriber that returns one Notice if the first steps diverge.

    `lr` is the run's peak learning rate. `known` holds the metric columns of steps that an earlier
    process logged, so a resumed run is checked as a whole and no notice appears twice.
    """

    def __init__(
        self, folder: Path, config: RunConfig, lr: float, known: Mapping[str, Sequence[float]]
    ) -> None:
        self._folder, self._config, self._lr = folder, config, lr
        self._losses = list(known.get(TRAIN_LOSS, ()))[:FIRST_STEPS]
        self._grad_norms = list(known.get(GRAD_NORM, ()))[:FIRST_STEPS]
        self._good: Path | None = None
        self._is_silent = find_instability(self._losses, self._grad_norms) is not None

    def __call__(self, event: Event) -> list[Notice]:
        """Return the notice at the step that shows it."""
        if isinstance(event, CheckpointSaved) and event.best and are_stable(self._losses):
            self._good = self._folder / event.path
        if isinstance(event, StepDone) and event.step <= FIRST_STEPS and not self._is_silent:
            return self._judge(event)
        return []

    def _judge(self, event: StepDone) -> list[Notice]:
        self._losses.append(event.metrics[TRAIN_LOSS])
        self._grad_norms.append(event.metrics[GRAD_NORM])
        trouble = find_instability(self._losses, self._grad_norms)
        if trouble is None:
            return []
        self._is_silent = True
        remedy = describe_adamw_restart(self._folder, self._config, self._lr, self._good)
        return [Notice("warning", f"{trouble} {_BLAME}", remedy, event.step, offer="rescue")]


def adamw_restart_config(config: RunConfig, lr: float, checkpoint: Path | None) -> RunConfig:
    """Return the same run with AdamW at its usual rate, from the last good checkpoint if any.

    A run that already uses AdamW keeps it, with a tenth of its learning rate `lr` or the family's
    usual rate, whichever is lower.
    """
    options = {}
    if config.optimizer.name == "adamw":
        # A tenth is chosen by hand: far enough from the rate that diverged to be worth a try.
        usual = find_base_lr(resolve(replace(config, optimizer=Choice("adamw"))))
        options = config.optimizer.options | {"lr": min(lr / 10, usual)}
    base = str(checkpoint) if checkpoint else config.base
    return replace(config, optimizer=Choice("adamw", options), base=base)


def describe_adamw_restart(
    folder: Path, config: RunConfig, lr: float, checkpoint: Path | None
) -> str:
    """Describe how to start the run of `adamw_restart_config`, as a sentence with the command."""
    rescue = adamw_restart_config(config, lr, checkpoint)
    words = ["train", "--config", str(folder / "run.json"), "--run", f"{folder}-adamw"]
    words += ["--optimizer", "adamw"]
    words += ["--lr", f"{rescue.optimizer.options['lr']:g}"] if rescue.optimizer.options else []
    words += ["--base", str(checkpoint)] if checkpoint else []
    change = "a lower learning rate" if config.optimizer.name == "adamw" else "AdamW"
    source = "the last good checkpoint" if checkpoint else "its start"
    command = shlex.join(["python", "-m", "trainer", *words])
    return f"Stop it and start the same run with {change} from {source}: {command}"


def _find_explosion(grad_norms: Sequence[float]) -> str | None:
    lost = [not math.isfinite(norm) for norm in grad_norms[-_LOST_NORMS:]]
    if len(lost) == _LOST_NORMS and all(lost):
        return f"The gradients of {_LOST_NORMS} steps in a row are NaN or infinite."
    finite = [norm for norm in grad_norms if math.isfinite(norm)]
    if len(finite) < 3 * _WINDOW:
        return None  # a median needs at least two windows before the one it is compared with
    usual, now = median(finite[:-_WINDOW]), median(finite[-_WINDOW:])
    if usual <= 0 or now <= _EXPLOSION * usual:
        return None
    return f"The gradient norm grew from {usual:.3g} to {now:.3g}."

"""Restart a run with AdamW after its first steps went wrong."""

import time
from pathlib import Path

from trainer.callbacks.instability import adamw_restart_config, are_stable
from trainer.config.resolve import find_base_lr, resolve
from trainer.core.errors import RunError
from trainer.core.metrics import TRAIN_LOSS
from trainer.runs.run import Run
from webui.studio import Studio

_STOP_TIMEOUT_S = 20.0  # Chosen by hand: as long as a person watches a button; else use the queue.


def restart_with_adamw(studio: Studio, name: str) -> tuple[str, bool]:
    """Stop a run and start a new one with AdamW from its last good checkpoint.

    Returns:
        The new run's name, and whether it has started: if the old run takes long to stop, the new
        one waits in the queue.

    Raises:
        RunError: no restart was offered for this run.
    """
    run = studio.library.get(name)
    step = _warned_at(studio, name)
    lr = find_base_lr(resolve(run.config))
    config = adamw_restart_config(run.config, lr, _good_checkpoint(studio, run, step))
    wanted = f"{name}-adamw"
    if _has_stopped(run):
        return studio.start(wanted, config).name, True
    return studio.library.enqueue(wanted, config).name, False


def _warned_at(studio: Studio, name: str) -> int:
    """Return the step at which a restart with AdamW was offered."""
    marks = studio.library.series(name).marks
    offers = [mark.step for mark in marks if mark.values.get("offer") == "rescue"]
    if not offers:
        raise RunError(f"{name} shows no instability, so there is no reason to restart it.")
    return offers[-1]


def _good_checkpoint(studio: Studio, run: Run, before: int) -> Path | None:
    """Return the latest best checkpoint saved before the instability, if it still exists."""
    series = studio.library.series(run.name)
    columns = series.steps.columns
    losses = dict(zip(columns.get("step", ()), columns.get(TRAIN_LOSS, ()), strict=False))
    good = [
        run.folder / mark.values["path"]
        for mark in series.marks
        if mark.kind == "checkpoint"
        and mark.values["best"]
        and mark.step <= before
        and are_stable([loss for step, loss in losses.items() if step <= mark.step])
    ]
    kept = [folder for folder in good if (folder / "manifest.json").is_file()]
    return kept[-1] if kept else None


def _has_stopped(run: Run) -> bool:
    """Ask a run to stop and wait briefly, because two runs may not fit on one GPU."""
    if not run.status().is_active:
        return True
    run.request("stop")
    ends_at = time.monotonic() + _STOP_TIMEOUT_S
    while time.monotonic() < ends_at:
        if not run.status().is_active:
            return True
        time.sleep(0.2)
    return False

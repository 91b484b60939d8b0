"""Rescue: the run that the guard of the first steps offers in place of one that goes wrong."""

import time
from pathlib import Path

from trainer.entries import find_base_lr, resolve
from trainer.errors import RunError
from trainer.guard import are_sane, rescue_config
from trainer.runs import Run
from webui.studio import Studio

_PATIENCE_S = 20.0


def rescue(studio: Studio, name: str) -> tuple[str, bool]:
    """Stop a run and start it again with AdamW from its last good checkpoint.

    Returns:
        The new run's name, and whether it trains already: it waits in the queue for a run whose
        step takes long to end.

    Raises:
        RunError: the guard has said nothing of this run.
    """
    run = studio.library.get(name)
    step = _warned_at(studio, name)
    lr = find_base_lr(resolve(run.config))
    config = rescue_config(run.config, lr, _good_checkpoint(studio, run, step))
    wanted = f"{name}-adamw"
    if _has_stopped(run):
        return studio.start(wanted, config).name, True
    return studio.library.enqueue(wanted, config).name, False


def _warned_at(studio: Studio, name: str) -> int:
    """Return the step at which the guard offered to start again."""
    marks = studio.library.series(name).marks
    offers = [mark.step for mark in marks if mark.values.get("offer") == "rescue"]
    if not offers:
        raise RunError(f"The first steps of {name} went well; there is nothing to start again.")
    return offers[-1]


def _good_checkpoint(studio: Studio, run: Run, before: int) -> Path | None:
    """Return the last checkpoint that was the best and came before the harm, if it is kept."""
    series = studio.library.series(run.name)
    losses = dict(
        zip(series.steps.columns.get("step", ()), series.steps.columns.get("train/loss", ()),
            strict=False)
    )  # fmt: skip
    good = [
        run.folder / mark.values["path"]
        for mark in series.marks
        if mark.kind == "checkpoint"
        and mark.values["best"]
        and mark.step <= before
        and are_sane([loss for step, loss in losses.items() if step <= mark.step])
    ]
    kept = [folder for folder in good if (folder / "manifest.json").is_file()]
    return kept[-1] if kept else None


def _has_stopped(run: Run) -> bool:
    """Ask a run to stop and wait a little; two at once may not fit on a GPU."""
    if not run.status().is_active:
        return True
    run.request("stop")
    ends_at = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ends_at:
        if not run.status().is_active:
            return True
        time.sleep(0.2)
    return False

"""Rescue: the run that the guard of the first steps offers in place of one that goes wrong."""

import time

from trainer.entries import find_base_lr, resolve
from trainer.errors import RunError
from trainer.guard import rescue_config
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
    good = [info.folder for info in run.checkpoints() if info.best and info.step <= step]
    config = rescue_config(run.config, lr, good[-1] if good else None)
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

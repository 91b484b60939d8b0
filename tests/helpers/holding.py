"""Training that stands still at a moment, so that what is done to it comes never too late."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from trainer import Run

_PATIENCE_S = 300


def hold(
    start: Callable[[], "subprocess.Popen[str]"], folder: Path, is_time: Callable[[Run], bool]
) -> "tuple[subprocess.Popen[str], Run, int]":
    """Start what trains a run and let the run's own process stand still once it is time.

    Training that was over before it could be held, as on a machine that does other work, is done
    again; `folder` of it, which holds the run at `folder` or right below, is deleted before.

    Returns:
        What was started, the run, and the id of the process that stands still.
    """
    while True:
        process = start()
        run = _wait_for(folder, is_time)
        owner = run.owner()
        if owner is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner.pid, signal.SIGSTOP)
            if owner.is_alive and run.series().finished is None:
                return process, run, owner.pid
            with contextlib.suppress(ProcessLookupError):
                os.kill(owner.pid, signal.SIGCONT)
        process.kill()
        process.communicate()
        run.wait(poll_s=0.02)
        shutil.rmtree(folder)


def _wait_for(folder: Path, is_time: Callable[[Run], bool]) -> Run:
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        for path in (*folder.glob("run.json"), *folder.glob("*/run.json")):
            run = Run(path.parent)
            if is_time(run):
                return run
        time.sleep(0.01)
    raise AssertionError(f"the time of {folder.name} did not come")

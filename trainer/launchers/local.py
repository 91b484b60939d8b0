"""Local: this machine, in a process that outlives whoever started it; torchrun for several GPUs."""

import threading
import time
from dataclasses import asdict

from trainer.errors import ConfigError
from trainer.launchers._launcher import Handle, Launcher, Resources
from trainer.ownership import Identity
from trainer.runs import Run

_POLL_S = 0.05


def submit(run: Run, resources: Resources) -> Handle:
    """Start a run here.

    Raises:
        RunOwned: it is being trained.
    """
    if resources.nodes > 1:
        raise ConfigError("This machine is one machine. Give --nodes 1, or another launcher.")
    process = run.start()
    # It outlives this process; until then, somebody has to take note of its end.
    threading.Thread(target=process.wait, daemon=True).start()
    identity = Identity.of(process.pid)
    return Handle("local", asdict(identity) if identity is not None else {})


def status(run: Run, handle: Handle) -> str:
    """Return whether the run trains here."""
    identity = Identity.read(handle.values)
    is_alive = identity is not None and identity.is_alive
    return "running" if is_alive or run.status().is_active else "ended"


def cancel(run: Run, handle: Handle) -> None:
    """Ask the run to save and stop."""
    if run.status().is_active:
        run.request("stop")


def attach(run: Run, handle: Handle) -> None:
    """Wait until no process trains the run, and the one that was sent is gone."""
    run.wait()
    while status(run, handle) == "running":
        time.sleep(_POLL_S)


LAUNCHER = Launcher("local", "This machine", submit, status, cancel, attach)

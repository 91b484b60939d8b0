"""Train on this machine, in a process that outlives the one that started it."""

import threading
import time
from dataclasses import asdict

from trainer.core.errors import ConfigError
from trainer.launchers._launcher import Handle, Launcher, Resources
from trainer.runs.locks import ProcessIdentity
from trainer.runs.run import Run

_POLL_S = 0.05  # a status costs only a look at the process table


def submit(run: Run, resources: Resources) -> Handle:
    """Start a run on this machine.

    Raises:
        ConfigError: more than one machine is requested.
        RunOwned: the run is already training.
    """
    if resources.nodes > 1:
        raise ConfigError(
            f"{resources.nodes} machines were requested, but the launcher 'local' uses only this "
            "one. Use --nodes 1 or another launcher."
        )
    process = run.start()
    # While this process lives, it has to reap the child, or the child would stay a zombie and count
    # as alive.
    threading.Thread(target=process.wait, daemon=True).start()
    identity = ProcessIdentity.of(process.pid)
    return Handle("local", asdict(identity) if identity is not None else {})


def status(run: Run, handle: Handle) -> str:
    """Return whether the run is training on this machine."""
    # Also by the run's own status, because someone else may have resumed it meanwhile.
    identity = ProcessIdentity.read(handle.values)
    is_alive = identity is not None and identity.is_alive
    return "running" if is_alive or run.status().is_active else "ended"


def cancel(run: Run, handle: Handle) -> None:
    """Ask the run to save and stop."""
    if run.status().is_active:
        run.request("stop")


def attach(run: Run, handle: Handle) -> None:
    """Wait until the run has ended and the process that was started is gone."""
    run.wait()
    while status(run, handle) == "running":
        time.sleep(_POLL_S)


LAUNCHER = Launcher("local", "This machine", submit, status, cancel, attach)

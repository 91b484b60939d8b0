"""Train a run in this process, as `train` and `resume` do."""

import os
import sys
import time

from trainer.commands._command import Echo
from trainer.commands._event_text import describe_event
from trainer.core.child_process import SAFE_PATH, child_environment, start_child
from trainer.core.events import Event, PhaseChanged, StepDone
from trainer.runs.run import Run


def continue_here(run: Run, echo: Echo) -> int:
    """Train in this process, or replace it by torchrun, which starts one process per GPU."""
    from trainer.worker.supervisor import report

    is_one_of_several = "WORLD_SIZE" in os.environ
    snapshot = run.snapshot()
    if not is_one_of_several:  # a rank's parent is torchrun, not the supervisor
        report(run.folder, snapshot.num_processes)
    if snapshot.num_processes > 1 and not is_one_of_several:
        environment = child_environment() | SAFE_PATH
        if os.name == "nt":  # execv on Windows returns to the shell before torchrun has ended
            return start_child(run.torchrun(), environment=environment).wait()
        os.execve(sys.executable, run.torchrun(), environment)  # keeps the supervised PID
    from trainer.worker.training_process import continue_run

    is_shown = sys.stdout.isatty() or "TIMBRE_PROGRESS" in os.environ
    return continue_run(run, _EventPrinter(echo) if is_shown else None, snapshot)


class _EventPrinter:
    """Prints a run's events to a terminal, at most one step every two seconds."""

    def __init__(self, echo: Echo) -> None:
        self._echo = echo
        self._printed_at = 0.0

    def __call__(self, event: Event) -> None:
        text = describe_event(event)
        is_frequent = isinstance(event, StepDone | PhaseChanged)
        # Two seconds (chosen by hand): readable while steps take milliseconds. Rare events always
        # show.
        if text is None or (is_frequent and time.monotonic() - self._printed_at < 2.0):
            return
        self._printed_at = time.monotonic() if is_frequent else self._printed_at
        self._echo(text)

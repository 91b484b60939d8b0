"""`stop`: ask a run to save and stop."""

import argparse
from collections.abc import Sequence

from trainer.commands._command import Command, Echo, add_run
from trainer.runs.run import Run


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    add_run(parser)
    parser.add_argument("--wait", action="store_true", help="wait until the run has stopped")
    parser.add_argument("--now", action="store_true", help="kill it at once, without saving")
    args = parser.parse_args(argv)
    run = Run.open(args.run)
    if not run.status().is_active:
        echo(f"The run {run.name} is not training ({run.status().state}).")
        return 0
    if args.now:
        run.kill()  # for a run that hangs and cannot answer a request
        echo(f"{run.name} was killed; resume continues from its last checkpoint.")
    else:
        run.request("stop")
        echo(f"Asked {run.name} to save and stop after the current step.")
    if args.wait:
        status = run.wait()
        echo(f"{run.name}: {status.state} at step {status.step}.")
    return 0


COMMAND = Command("stop", "ask a run to save and stop", 50, _run)

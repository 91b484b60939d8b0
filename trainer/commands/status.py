"""`status`: show the state of a run."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from trainer.commands._command import Command, Echo, add_run
from trainer.commands._event_text import describe_metrics
from trainer.core import metrics
from trainer.runs.run import Run

_SHOWN = (metrics.TRAIN_LOSS, metrics.VAL_LOSS, metrics.S_PER_STEP, metrics.MEMORY_GIB)


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    add_run(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    status = Run.open(args.run).status()
    if args.json:
        echo(json.dumps(asdict(status), indent=2, ensure_ascii=False))
        return 0
    echo(f"{status.name}: {status.state}, step {status.step} of {status.total_steps}")
    if status.phase:
        echo(f"  {status.phase} {status.phase_done}/{status.phase_total}")
    for text in describe_metrics(status.metrics, _SHOWN):
        echo(f"  {text}")
    for name, state in status.optimizations.items():
        echo(f"  {name}: {'on' if state['on'] else 'off'}, {state['detail']}")
    if status.reason:
        echo(f"  {status.reason} {status.remedy}")
    return 0


COMMAND = Command("status", "show the state of a run", 60, _run)

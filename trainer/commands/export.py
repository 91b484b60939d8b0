"""`export`: write the weights of a run for use elsewhere."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainer.commands._command import Command, Echo, add_run
from trainer.runs.run import Run


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    from trainer.inference.synthesis import export_voice

    add_run(parser)
    parser.add_argument("--out", required=True, metavar="FOLDER", help="the new folder")
    parser.add_argument("--checkpoint", default="best", help="best, last or a step [best]")
    parser.add_argument("--bf16", action="store_true", help="write bf16 weights, half the size")
    args = parser.parse_args(argv)
    run, out = Run.open(args.run), Path(args.out)
    folder = export_voice(run, out, which=args.checkpoint, bf16=args.bf16)
    echo(f"Wrote {', '.join(sorted(path.name for path in folder.iterdir()))} to {folder}.")
    return 0


COMMAND = Command("export", "write the weights of a run for use elsewhere", 90, _run)

"""`metrics`: print the metrics of a run as JSON or CSV."""

import argparse
import sys
from collections.abc import Sequence
from itertools import chain

from trainer.commands._command import Command, Echo, add_run
from trainer.data.lists.ledger import escape_formula
from trainer.runs.points import csv_texts, json_texts
from trainer.runs.run import Run


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    add_run(parser)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--json", action="store_true", help="one JSON object of columns")
    form.add_argument("--csv", action="store_true", help="one row per step")
    args = parser.parse_args(argv)
    tables = Run.open(args.run).series().tables()
    if args.json:
        texts = chain(json_texts(tables), "\n")
    else:  # a spreadsheet must not take a name for a formula
        texts = csv_texts(**tables, title=escape_formula)
    for text in texts:
        sys.stdout.write(text)
    return 0


COMMAND = Command("metrics", "print the metrics of a run as JSON or CSV", 70, _run)

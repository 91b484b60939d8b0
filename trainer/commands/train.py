"""`train`: create a run folder and train it here."""

import argparse
from collections.abc import Sequence

from trainer.commands._command import Command, Echo
from trainer.commands._foreground import continue_here
from trainer.config.cli_flags import config_from_args, refuse_missing_data
from trainer.config.resolve import with_absolute_paths
from trainer.runs.run import Run


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    from trainer.training.assemble import check_before_start

    parser.add_argument("--run", required=True, metavar="DIR", help="the new run folder")
    config, args = config_from_args(parser, argv)
    refuse_missing_data(config)
    config = with_absolute_paths(config)
    # Before the folder exists, so that a corrected command can use its name.
    check_before_start(config)
    return continue_here(Run.create(args.run, config), echo)


COMMAND = Command("train", "create a run folder and train it here", 30, _run)

"""`resume`: start or continue a run, also with more steps or other options."""

import argparse
from collections.abc import Sequence

from trainer.commands._command import Command, Echo, add_run
from trainer.commands._foreground import continue_here
from trainer.config.resolve import resolve
from trainer.runs.run import Run


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    add_run(parser)
    more = "train this many more steps than planned, or than where it stopped early"
    parser.add_argument("--more-steps", type=int, metavar="N", help=more)
    sizes = "number of processes from now on, one per GPU; steps keep the same clips"
    parser.add_argument("--gpus", type=int, metavar="N", help=sizes)
    change = "change an option, such as training.batch_size=4; prints what that means for the run"
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help=change)
    args = parser.parse_args(argv)
    run = Run.open(args.run)
    if args.gpus is not None:
        run.choose_processes(args.gpus)
    if args.set:
        _change_options(run, args.set, echo)
    if args.more_steps is not None:
        echo(f"{run.name} now ends at step {run.request_more(args.more_steps)}.")
        if run.is_owned():  # no second process may train it
            return 0  # the process that trains it reads the request
    return continue_here(run, echo)


def _change_options(run: Run, words: Sequence[str], echo: Echo) -> None:
    """Apply options that change at a resume and print how much each of them matters."""
    from trainer.checkpoints.compatibility import (
        changed_config,
        compare_configs,
        read_changes,
        refuse_differences,
        refuse_processes,
    )

    changes = read_changes(run.current_config, words)
    refuse_processes(changes)  # `--gpus` checks that the step can be shared evenly
    config = changed_config(run.current_config, changes)
    resolve(config)  # raises for unknown names and bad values; the result is not needed
    differences = compare_configs(run.current_config.to_json(), config.to_json())
    refuse_differences(differences)
    for difference in differences:
        echo(f"{difference}: {difference.kind}")
    run.change_options(changes)  # last: nothing is stored if anything above was refused


COMMAND = Command("resume", "start or continue a run", 40, _run)

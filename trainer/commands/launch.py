"""`launch`: train a run in the background, here or on a Slurm cluster."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from trainer.commands._command import Command, Echo
from trainer.config.cli_flags import config_from_args, refuse_missing_data
from trainer.config.resolve import with_absolute_paths
from trainer.core.errors import ConfigError
from trainer.core.registry import discover, find
from trainer.launchers._launcher import Launcher, Resources, read_handle
from trainer.runs.run import Run

_LAUNCHERS = "trainer.launchers"


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    """Submit a run to a launcher, or query one that was submitted.

    The run may be an existing folder, or a new one that the flags of `train` describe.
    """
    from trainer.training.assemble import check_before_start

    _add_flags(parser)
    # Two passes, because an existing run takes none of the flags that describe a new one.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # `--run` may be missing in this pass, so that --help still reaches the second one.
    _add_flags(first, is_first=True)
    known, rest = first.parse_known_args(argv)  # `rest` describes a run to be created
    if known.status or known.cancel or known.attach:
        return _ask(Run.open(known.run), known, echo)
    if known.run and Path(known.run).exists():
        if rest:
            raise ConfigError(
                f"{known.run} already exists, and its settings cannot be changed here. Leave out: "
                f"{' '.join(rest)}"
            )
        run = Run.open(known.run)
    else:
        config, known = config_from_args(parser, argv)
        refuse_missing_data(config)
        config = with_absolute_paths(config)
        check_before_start(config)  # now, and not after hours in a queue
        run = Run.create(known.run, config)
    resources = Resources(
        known.nodes, run.num_processes, known.hours, known.cpus, known.memory, known.partition
    )
    launcher = find(_LAUNCHERS, Launcher, known.on)
    handle = launcher.submit(run, resources)
    handle.save(run.folder)
    echo(f"{run.name} was submitted to: {launcher.label}.")
    echo(f"Show its progress with: python -m trainer status {run.folder}")
    return 0


def _ask(run: Run, known: argparse.Namespace, echo: Echo) -> int:
    handle = read_handle(run.folder)
    launcher = find(_LAUNCHERS, Launcher, handle.launcher)  # the one that has the job, not `--on`
    if known.cancel:
        launcher.cancel(run, handle)
    if known.attach:
        launcher.attach(run, handle)
    status = run.status()
    where = launcher.status(run, handle)
    echo(f"{launcher.label}: {where}. {run.name}: {status.state}, step {status.step}.")
    return 0


def _add_flags(parser: argparse.ArgumentParser, *, is_first: bool = False) -> None:
    add = parser.add_argument_group("where").add_argument
    add("--run", required=not is_first, default="", metavar="DIR", help="a run folder, may be new")
    add("--on", default="local", help=f"{', '.join(discover(_LAUNCHERS, Launcher))} [local]")
    add("--nodes", type=int, default=1, help="number of machines that share the GPUs [1]")
    add("--hours", type=float, default=24.0, help="time limit of a cluster job [24]")
    add("--cpus", type=int, default=8, help="CPU cores per machine [8]")
    add("--memory", type=int, default=32, metavar="GIB", help="memory per machine [32]")
    add("--partition", default="", help="partition of the cluster, if it has several")
    add("--status", action="store_true", help="show the state of a submitted run")
    add("--cancel", action="store_true", help="save and stop the run, or remove it from the queue")
    add("--attach", action="store_true", help="wait until the run has ended")


COMMAND = Command("launch", "train a run in the background, here or on a Slurm cluster", 100, _run)

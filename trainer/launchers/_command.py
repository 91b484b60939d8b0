"""`python -m trainer launch`: send a run somewhere, ask about it, take it back, wait for it."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.assemble import check_before_start
from trainer.catalog import discover, find
from trainer.entries import with_absolute_paths
from trainer.errors import ConfigError
from trainer.flags import config_from_args, refuse_missing_data
from trainer.launchers._launcher import Launcher, Resources, read_handle
from trainer.runs import Run

Tell = Callable[[str], None]
_LAUNCHERS = "trainer.launchers"


def launch_command(parser: argparse.ArgumentParser, argv: Sequence[str], tell: Tell) -> int:
    """Send a run, which flags of `train` may describe, to a launcher; or ask about one sent."""
    _add_flags(parser)
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_flags(first, is_first=True)
    known, rest = first.parse_known_args(argv)
    if known.status or known.cancel or known.attach:
        return _ask(Run.open(known.run), known, tell)
    if known.run and Path(known.run).exists():
        if rest:
            raise ConfigError(
                f"{known.run} is there already, and what it trains stays. Leave out: "
                f"{' '.join(rest)}"
            )
        run = Run.open(known.run)
    else:
        config, known = config_from_args(parser, argv)
        refuse_missing_data(config)
        config = with_absolute_paths(config)
        check_before_start(config)
        run = Run.create(known.run, config)
    resources = Resources(
        known.nodes, run.num_processes, known.hours, known.cpus, known.memory, known.partition
    )
    launcher = find(_LAUNCHERS, Launcher, known.on)
    handle = launcher.submit(run, resources)
    handle.save(run.folder)
    tell(f"{run.name} was sent to: {launcher.label}.")
    tell(f"Watch it with: python -m trainer status {run.folder}")
    return 0


def _ask(run: Run, known: argparse.Namespace, tell: Tell) -> int:
    handle = read_handle(run.folder)
    launcher = find(_LAUNCHERS, Launcher, handle.launcher)
    if known.cancel:
        launcher.cancel(run, handle)
    if known.attach:
        launcher.attach(run, handle)
    status = run.status()
    where = launcher.status(run, handle)
    tell(f"{launcher.label}: {where}. {run.name}: {status.state}, step {status.step}.")
    return 0


def _add_flags(parser: argparse.ArgumentParser, *, is_first: bool = False) -> None:
    add = parser.add_argument_group("where").add_argument
    add("--run", required=not is_first, default="", metavar="DIR", help="a run folder, new or not")
    add("--on", default="local", help=f"{', '.join(discover(_LAUNCHERS, Launcher))} [local]")
    add("--nodes", type=int, default=1, help="machines that share the GPUs [1]")
    add("--hours", type=float, default=24.0, help="longest time the cluster grants at once [24]")
    add("--cpus", type=int, default=8, help="processor cores on each machine [8]")
    add("--memory", type=int, default=32, metavar="GIB", help="memory of each machine [32]")
    add("--partition", default="", help="queue of the cluster, if it has several")
    add("--status", action="store_true", help="say where a run is that was sent")
    add("--cancel", action="store_true", help="let it save and stop, or leave the queue")
    add("--attach", action="store_true", help="wait until it has ended")

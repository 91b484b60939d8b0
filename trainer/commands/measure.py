"""`measure`: measure the speed and memory of each optimization on this machine."""

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.commands._command import FINISHED, STOPPED, Command, Echo, on_stop_signals
from trainer.config.cli_flags import config_from_args
from trainer.config.resolve import find_family, with_absolute_paths
from trainer.core.errors import ConfigError
from trainer.core.specs import ModelFamily
from trainer.profiling.measurements import Measurement, keep, list_kept, new_path, read_kept

if TYPE_CHECKING:
    from trainer.profiling.benchmark.benchmark import Benchmark
    from trainer.profiling.benchmark.plan import BenchmarkPlan

_USUAL_STEPS = 1000
"""Length of run for which an optimization such as `compile` decides whether it pays off (chosen by
hand)."""


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    # A trial's child process: it needs none of the flags below.
    known, rest = _own_parser(add_help=False).parse_known_args(argv)
    # `--row` is read before any flag of the configuration, because a trial gets its plan as a file.
    if known.row:
        # Imported late, because only a child process needs what a trial loads.
        from trainer.profiling.benchmark.trial import run_trial

        return run_trial(Path(known.row), Path(known.row_out))
    if known.show is not None:
        return _show(known.show, echo)
    _add_flags(parser.add_argument_group("the measurement"))
    parser.epilog = (
        "Without --base and clips, --size chooses a model with random weights: tiny, medium or "
        "full for xtts, small or standard for fastspeech2."
    )
    plan, args = _read_plan(parser, argv, known)
    from trainer.profiling.benchmark.benchmark import Benchmark

    benchmark = Benchmark(plan)
    # The path is chosen before the trials, so that every save replaces the same file.
    path = new_path(plan.config.family.name)
    # Cancelling instead of dying stores the finished trials and kills the current child.
    with on_stop_signals(benchmark.cancel):
        _carry_out(benchmark, path, args, echo)
    return FINISHED if benchmark.measurement.state == "finished" else STOPPED


def _carry_out(benchmark: "Benchmark", path: Path, args: argparse.Namespace, echo: Echo) -> None:
    from trainer.profiling.benchmark.plan import FIRST
    from trainer.profiling.benchmark.report import format_trial

    measurement = benchmark.measurement
    if not args.lines:
        machine, model = measurement.machine, measurement.model
        echo(
            f"{model['family']}, {model['size']}, batch {model['batch_size']}, {machine['device']}"
        )
    for row in benchmark.trials():
        keep(measurement, path)  # after every trial, so that a crash loses only the current one
        # Each trial is shown relative to the first one, which has no optimization on.
        first = measurement.trial(FIRST)
        echo(json.dumps(asdict(row)) if args.lines else format_trial(row, first))
    keep(measurement, path)  # once more, with the final state and the total time
    if args.json:
        keep(measurement, Path(args.json))
    if not args.lines:
        echo(f"Saved as {path}: {measurement.state} after {measurement.seconds:.0f} s.")


def _own_parser(*, add_help: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=add_help, allow_abbrev=False)
    _add_flags(parser)
    for name in ("--family", "--base", "--device", "--size", "--train-csv", "--train-data"):
        parser.add_argument(name)
    # Internal flags of child processes, which is why they have no help text.
    parser.add_argument("--row")
    parser.add_argument("--row-out")
    return parser


def _add_flags(group: "argparse.ArgumentParser | argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--minutes", type=float, default=10.0, help="time limit for all trials together [10]")
    add(
        "--lengths",
        choices=("longest", "spread"),
        default="longest",
        help="synthetic clips: all of the longest usual length, or spread as in read speech "
        "[longest]; --train-csv uses your own clips instead",
    )
    add("--json", default="", metavar="FILE", help="also write the result to FILE")
    add(
        "--goals",
        action="store_true",
        default=None,
        help="also measure combinations for speed, for low memory, at batch 32 and within 7.2 GB; "
        "always on for a GPU",
    )
    add("--lines", action="store_true", help="print one JSON line per trial, for programs")
    add(
        "--show",
        nargs="?",
        const="",
        metavar="FILE",
        help="list this machine's measurements, or show one as a table",
    )


def _read_plan(
    parser: argparse.ArgumentParser, argv: Sequence[str], known: argparse.Namespace
) -> tuple["BenchmarkPlan", argparse.Namespace]:
    """Parse the plan; without a base and clips, `--size` chooses a model with random weights."""
    from trainer.profiling.benchmark.plan import BenchmarkPlan
    from trainer.profiling.synthetic_batches import without_size

    family = find_family(known.family or "xtts")
    # The family is named explicitly, because the flags that exist depend on it.
    words = [*argv] if known.family else ["--family", family.name, *argv]
    size = ""
    # Real weights or clips have their own size, and a random model would measure another one.
    if not (known.base or known.train_csv or known.train_data):
        size = _choose_size(family, known)
        words = without_size(words, family, size)
    config, args = config_from_args(parser, words)
    config = with_absolute_paths(config)
    training = replace(config.training, steps=_USUAL_STEPS, epochs=None)
    plan = BenchmarkPlan(
        config=replace(config, training=training),
        size=size,
        lengths=args.lengths,
        minutes=args.minutes,
        goals=args.goals,
        # Stored with the result, so that a reader can repeat the measurement.
        command=shlex.join(["python", "-m", "trainer", "measure", *argv]),
    )
    return plan, args


def _choose_size(family: ModelFamily, known: argparse.Namespace) -> str:
    """Return the size of a random model: as given, else the largest on a GPU, smallest on a CPU."""
    from trainer.training.assemble import choose_device

    if family.synthetic is None:
        raise ConfigError(f"{family.label} cannot be measured without clips. Add --train-csv FILE.")
    sizes = family.synthetic.sizes
    is_gpu = choose_device(known.device or "auto").kind == "cuda"
    # On a CPU, trials at the real size could use up the time limit (chosen by hand).
    size = known.size or sizes[-1 if is_gpu else 0]
    if size not in sizes:
        raise ConfigError(
            f"{family.label} has no size '{size}' that can be measured with random weights. Use "
            f"one of: {', '.join(sizes)}."
        )
    return size


def _show(name: str, echo: Echo) -> int:
    from trainer.profiling.benchmark.report import to_markdown

    if name:
        found = read_kept(Path(name))
        echo(f"{found.command}\n{found.machine['device']}, {found.made_at}, {found.state}\n")
        echo(to_markdown(found))
        return FINISHED
    kept = list_kept()
    for path, measurement in kept:
        echo(f"{path}: {_title(measurement)}")
    if not kept:
        echo("There are no measurements yet. Make one with: python -m trainer measure")
    return FINISHED


def _title(measurement: Measurement) -> str:
    model = measurement.model
    done = sum(row.is_done for row in measurement.rows)
    return (
        f"{measurement.made_at}, {measurement.machine['device']}, {model['family']} "
        f"{model['size']}, batch {model['batch_size']}: {done} trials, {measurement.state}"
    )


COMMAND = Command(
    "measure", "measure the speed and memory of each optimization on this machine", 140, _run
)

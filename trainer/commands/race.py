"""The command `python -m trainer race`: its flags, and the report files that it writes."""

import argparse
import signal
from collections.abc import Sequence
from types import FrameType
from typing import Any

from trainer.config.cli_flags import config_from_args, refuse_missing_data
from trainer.core.errors import ConfigError, MissingDependency
from trainer.core.options import build_options, describe
from trainer.core.run_config import RunConfig
from trainer.race.choices import RaceChoices, plan_race
from trainer.race.plan import RacePlan
from trainer.race.plots import draw_race
from trainer.race.queue import Echo, Race, machine_of
from trainer.race.report import budget, make_report, to_csv, to_json, to_markdown
from trainer.race.verdict import describe_power
from trainer.training.assemble import check_before_start

FINISHED, STOPPED = 0, 10  # a script can tell "stopped, can be continued" from an error
"""Exit codes; the same as those of `train`."""


def race_command(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    """Start, continue or stop a race, and return the exit code."""
    _add_flags(parser)
    # Parsed twice: whether the full set of flags applies depends on what the folder has.
    known, rest = _known(argv)
    wants_help = not {"-h", "--help"}.isdisjoint(argv)
    if known.stop and not wants_help:
        Race.open(known.race).request_stop()
        echo(f"Asked {known.race} to save and stop.")
        return FINISHED
    # A new race also answers --help, because only the full set of flags shows every option.
    if wants_help or not Race(known.race).exists():
        # Absolute paths below, because the race may be continued from another working folder.
        config, args = config_from_args(parser, argv)
        refuse_missing_data(config)
        plan = _make_plan(config.with_absolute_paths(), args)
        race = Race.create(args.race, plan)
        echo(describe_power(len(plan.seeds), len(plan.entrants)))
        return carry_out(race, echo)
    if rest:
        raise ConfigError(
            f"{known.race} already contains a race, and its plan never changes. Continue it with "
            f"--race {known.race} alone, or choose another folder for: {' '.join(rest)}"
        )
    return carry_out(Race(known.race), echo)


def carry_out(race: Race, echo: Echo) -> int:
    """Run a race in this process, write its report files, and return the exit code."""
    before = _stop_on_signals(race)
    try:
        state = race.carry_out(echo)
    finally:
        # The caller may be a long-lived process, such as a test, with handlers of its own.
        for number, handler in before.items():
            signal.signal(number, handler)
    if state == "stopped":
        echo(f"Stopped. Continue with: python -m trainer race --race {race.folder}")
        return STOPPED
    publish(race, echo)
    return FINISHED


def publish(race: Race, echo: Echo) -> None:
    """Write `race.md`, `race.csv`, `results.json` and `race.png` to the folder of a race."""
    plan, results = race.plan, race.results()
    report = make_report(plan, results)
    text = to_json(plan, results, report, machine_of(race.folder))
    (race.folder / "results.json").write_text(text, encoding="utf-8")
    (race.folder / "race.csv").write_text(to_csv(report), encoding="utf-8")
    markdown = to_markdown(report)
    (race.folder / "race.md").write_text(markdown, encoding="utf-8")
    try:
        draw_race(plan, results, report, race.folder / "race.png")
    # The picture needs an optional package; the numbers are worth more and are written already.
    except MissingDependency as error:
        echo(f"The picture was not drawn: {error}")
    echo(markdown)
    spent = ", ".join(
        f"{clock} {seconds:.0f} s" for clock, seconds in budget(plan, results).items()
    )
    echo(f"Time spent, including start-up and validation: {spent}.")


def _add_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("the race").add_argument
    add(
        "--race",
        metavar="DIR",
        required=True,
        help="a new folder, or the folder of a race to continue",
    )
    add("--stop", action="store_true", help="ask a running race to save and stop")
    for info in describe(RaceChoices):
        flag, text = f"--{info.name.replace('_', '-')}", info.help[:1].lower() + info.help[1:]
        if info.kind is bool:
            add(flag, action="store_true", help=text)
        else:
            text += f" [{info.default}]" if info.default is not None else ""
            add(flag, default=info.default, help=text)


def _known(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    # No abbreviations: this parser knows two flags and would take `--st` for --stop, although the
    # full set of flags also has --steps.
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--race", default="")
    parser.add_argument("--stop", action="store_true")
    return parser.parse_known_args(argv)


def _make_plan(config: RunConfig, args: argparse.Namespace) -> RacePlan:
    told = {info.name: getattr(args, info.name) for info in describe(RaceChoices)}
    plan = plan_race(config, build_options(RaceChoices, told, "race"))
    for contender in plan.entrants:
        value = contender.values[0]
        # Every contender is checked now, so that a bad option does not stop the race hours later.
        check_before_start(plan.run_config(contender, value, seed=0, steps=1, num_validations=1))
    return plan


def _stop_on_signals(race: Race) -> dict[int, Any]:
    def ask_to_stop(signum: int, frame: FrameType | None) -> None:
        race.request_stop()

    return {
        number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)
    }

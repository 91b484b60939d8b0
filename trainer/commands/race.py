"""`race`: compare optimizers on your clips under equal conditions."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trainer.commands._command import FINISHED, STOPPED, Command, Echo, on_stop_signals
from trainer.config.cli_flags import config_from_args, refuse_missing_data
from trainer.config.resolve import with_absolute_paths
from trainer.core.errors import ConfigError
from trainer.core.options import build_options, describe
from trainer.core.run_config import RunConfig

if TYPE_CHECKING:
    from trainer.race.plan import RacePlan
    from trainer.race.queue import Race


def _run(parser: argparse.ArgumentParser, argv: Sequence[str], echo: Echo) -> int:
    from trainer.race.queue import Race
    from trainer.race.verdict import describe_power

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
        plan = _make_plan(with_absolute_paths(config), args)
        race = Race.create(args.race, plan)
        echo(describe_power(len(plan.seeds), len(plan.entrants)))
        return _carry_out(race, echo)
    if rest:
        raise ConfigError(
            f"{known.race} already contains a race, and its plan never changes. Continue it with "
            f"--race {known.race} alone, or choose another folder for: {' '.join(rest)}"
        )
    return _carry_out(Race(known.race), echo)


def _carry_out(race: "Race", echo: Echo) -> int:
    """Run a race in this process, write its report files, and return the exit code."""
    from trainer.race.publish import publish

    with on_stop_signals(race.request_stop):
        state = race.carry_out(echo)
    if state == "stopped":
        echo(f"Stopped. Continue with: python -m trainer race --race {race.folder}")
        return STOPPED
    publish(race, echo)
    return FINISHED


def _add_flags(parser: argparse.ArgumentParser) -> None:
    from trainer.race.choices import RaceChoices

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


def _make_plan(config: RunConfig, args: argparse.Namespace) -> "RacePlan":
    from trainer.race.choices import RaceChoices, plan_race
    from trainer.training.assemble import check_before_start

    told = {info.name: getattr(args, info.name) for info in describe(RaceChoices)}
    plan = plan_race(config, build_options(RaceChoices, told, "race"))
    for contender in plan.entrants:
        value = contender.values[0]
        # Every contender is checked now, so that a bad option does not stop the race hours later.
        check_before_start(plan.run_config(contender, value, seed=0, steps=1, num_validations=1))
    return plan


COMMAND = Command("race", "compare optimizers on your clips under equal conditions", 110, _run)

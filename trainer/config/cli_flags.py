"""Convert between RunConfig and command-line flags.

The flags are generated from the same option fields as the page, so both offer the same settings.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainer.config.presets import PRESETS, apply_preset
from trainer.config.resolve import find_family, find_optimizer, find_schedule
from trainer.config.schedules import SCHEDULES
from trainer.core.errors import ConfigError, FieldProblem
from trainer.core.options import OptionInfo, Values, build_options, describe, parse_value
from trainer.core.registry import discover
from trainer.core.run_config import DataConfig, RunConfig, TrainingConfig, merge_values, read_values
from trainer.core.specs import ModelFamily, Optimization, OptimizerSpec

_GROUPS = {
    "data": "clips",
    "training": "training",
    "family": "options of the model family",
    "optimizer": "options of the optimizer",
    "schedule": "options of the schedule",
}
# Flags that differ from the field's name, because users count GPUs and not processes.
_SPOKEN = {"num_processes": "gpus"}


@dataclass(frozen=True)
class Flag:
    """A command-line option and the path of its value in a RunConfig's JSON."""

    flag: str
    path: tuple[str, ...]
    info: OptionInfo


def config_from_args(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[RunConfig, argparse.Namespace]:
    """Read a RunConfig: defaults, then --preset, then --config, then the other flags.

    The options of the chosen family, optimizer and schedule become flags of their own, so the
    parser is completed here and `--help` shows the options of what was chosen.

    Raises:
        ConfigError: a value or a combination is invalid; the error lists every problem.
    """
    # Two passes: which flags exist depends on the family, optimizer and schedule chosen.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    _add_choices(first)
    chosen, _ = first.parse_known_args([word for word in argv if word not in ("-h", "--help")])
    config = _starting_config(chosen)
    _add_choices(parser)
    flags = config_flags(config)
    groups = {flag.path[0]: parser.add_argument_group(_GROUPS[flag.path[0]]) for flag in flags}
    optimizer = find_optimizer(config.optimizer.name)
    groups["optimizer"].description = f"{optimizer.summary} {optimizer.advice}".strip()
    for flag in flags:
        _add_flag(groups[flag.path[0]], flag)
    _add_optimizations(parser)
    parsed = parser.parse_args(argv)
    values = config.to_json()
    problems: list[str] = []
    for flag in flags:
        name = flag.flag.replace("-", "_")
        if hasattr(parsed, name):
            try:
                _put(values, flag.path, parse_value(flag.info, getattr(parsed, name)))
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(problems)
    _read_optimizations(values, parsed)
    # Only one of steps and epochs can be set; the one on the command line replaces the other of a
    # preset or a file. If both are on the command line, RunConfig refuses them.
    if hasattr(parsed, "epochs") and not hasattr(parsed, "steps"):
        values["training"]["steps"] = None
    if hasattr(parsed, "steps") and not hasattr(parsed, "epochs"):
        values["training"]["epochs"] = None
    return RunConfig.from_json(values), parsed


def data_from_args(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[DataConfig, argparse.Namespace]:
    """Read a DataConfig from flags with the same names as those of `train`.

    Raises:
        ConfigError: a value is invalid, or neither a CSV nor a folder is given.
    """
    group = parser.add_argument_group(_GROUPS["data"])
    infos = describe(DataConfig)
    for info in infos:
        _add_flag(group, Flag(info.name.replace("_", "-"), ("data", info.name), info))
    parsed = parser.parse_args(argv)
    given = {info.name: getattr(parsed, info.name) for info in infos if hasattr(parsed, info.name)}
    data = build_options(DataConfig, given, "check")
    refuse_missing_data(RunConfig(data=data))
    return data, parsed


def config_flags(config: RunConfig) -> list[Flag]:
    """List all flags for a configuration; a name already in use gets its part as a prefix."""
    family, optimizer = find_family(config.family.name), find_optimizer(config.optimizer.name)
    schedule = find_schedule(config.schedule.name)
    parts: list[tuple[tuple[str, ...], type]] = [
        (("data",), DataConfig),
        (("training",), TrainingConfig),
        (("family", "options"), family.options),
        (("optimizer", "options"), optimizer.options),
        (("schedule", "options"), schedule.options),
    ]
    flags: list[Flag] = []
    taken = {"family", "base", "optimizer", "schedule", "preset", "config", "run", "json", "help"}
    # In a fixed order, so that the same option gets the same flag for every choice of entries.
    taken |= {name.replace("_", "-") for name in discover("trainer.optimizations", Optimization)}
    for path, options_class in parts:
        for info in describe(options_class):
            name = _SPOKEN.get(info.name, info.name.replace("_", "-"))
            name = f"{path[0]}-{name}" if name in taken else name
            taken.add(name)
            flags.append(Flag(name, (*path, info.name), info))
    return flags


def command_line(config: RunConfig, run: str) -> list[str]:
    """Return the command that starts such a run; options with default values are left out."""
    words = ["python", "-m", "trainer", "train", "--run", run]
    for part in ("family", "optimizer", "schedule"):
        words += [f"--{part}", getattr(config, part).name]
    if config.base:
        words += ["--base", config.base]
    values = config.to_json()
    for flag in config_flags(config):
        value = _get(values, flag.path, flag.info.default)
        if value == flag.info.default:
            continue
        words += _words_of(flag, value)
    for name, options in config.optimizations.items():
        words.append(f"--{name.replace('_', '-')}")
        if "mode" in options:
            words.append(str(options["mode"]))
        for flag in _option_flags(name):
            value = options.get(flag.info.name, flag.info.default)
            if value != flag.info.default:
                words += _words_of(flag, value)
    return words


def _starting_config(chosen: argparse.Namespace) -> RunConfig:
    config = RunConfig()
    if hasattr(chosen, "preset"):
        config = apply_preset(config, chosen.preset)
    values = config.to_json()
    if hasattr(chosen, "config"):
        given = read_values(Path(chosen.config))
        # A file that sets one of the two replaces the other as well if a preset has set it.
        if {"steps", "epochs"} & given.get("training", {}).keys():
            values["training"] |= {"steps": None, "epochs": None}
        values = merge_values(values, given)
    for part in ("family", "optimizer", "schedule"):
        name = getattr(chosen, part, None)
        if name is not None and name != values[part]["name"]:
            values[part] = {"name": name, "options": {}}
    # An optimizer that brings its own schedule would otherwise be refused with the default one.
    allowed = find_optimizer(values["optimizer"]["name"]).schedules
    if allowed and values["schedule"]["name"] not in allowed and not hasattr(chosen, "schedule"):
        values["schedule"] = {"name": allowed[0], "options": {}}
    if hasattr(chosen, "base"):
        values["base"] = chosen.base
    return RunConfig.from_json(values)


def _add_choices(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to train and how")
    families = ", ".join(discover("trainer.models", ModelFamily))
    optimizers = ", ".join(discover("trainer.optimizers", OptimizerSpec))
    for name, text in (
        ("family", f"model family: {families}"),
        (
            "base",
            "base checkpoint to start from: an export, a checkpoint folder or published weights",
        ),
        ("optimizer", f"optimizer: {optimizers}"),
        ("schedule", f"learning-rate schedule: {', '.join(SCHEDULES)}"),
        ("preset", f"preset to start from: {', '.join(PRESETS)}"),
        ("config", "JSON file with settings, in the format of run.json"),
    ):
        # SUPPRESS here and below: only flags that were given show up in the result, so a default
        # cannot overwrite a value of a preset or a file.
        group.add_argument(f"--{name}", help=text, default=argparse.SUPPRESS, metavar=name.upper())


def _add_flag(parser: "argparse._ArgumentGroup", flag: Flag) -> None:
    info = flag.info
    default = "auto" if info.default is None else info.default
    shown = "" if default == "" else f" [{default}]"
    text = f"{info.label}: {info.help}{shown}".replace("%", "%%")  # argparse formats its help
    text = argparse.SUPPRESS if info.retired else text
    if info.kind is bool:
        action = argparse.BooleanOptionalAction
        parser.add_argument(f"--{flag.flag}", action=action, help=text, default=argparse.SUPPRESS)
        return
    metavar = "|".join(info.choices) if info.choices else info.kind.__name__.upper()
    parser.add_argument(f"--{flag.flag}", help=text, default=argparse.SUPPRESS, metavar=metavar)


def _words_of(flag: Flag, value: object) -> list[str]:
    if flag.info.kind is bool:
        return [f"--{flag.flag}" if value else f"--no-{flag.flag}"]
    return [f"--{flag.flag}", "auto" if value is None else _spell(value)]


def _add_optimizations(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("optimizations")
    for name, entry in discover("trainer.optimizations", Optimization).items():
        flag = f"--{name.replace('_', '-')}"
        modes = [info for info in describe(entry.options) if info.name == "mode"]
        text = entry.help.replace("%", "%%")
        for detail in _option_flags(name):
            _add_flag(group, detail)
        if not modes:
            action = argparse.BooleanOptionalAction
            group.add_argument(flag, action=action, help=text, default=argparse.SUPPRESS)
            continue
        # An optimization with modes takes one as an optional value: --compile, --compile MODE.
        choices = [*modes[0].choices, "off"]
        group.add_argument(
            flag, nargs="?", const=modes[0].default, choices=choices, help=text,
            default=argparse.SUPPRESS,
        )  # fmt: skip


def _option_flags(name: str) -> list[Flag]:
    """Return the flags of an optimization's options, except `mode`, the value of its own flag."""
    entry = discover("trainer.optimizations", Optimization)[name]
    start = name.replace("_", "-")
    return [
        Flag(f"{start}-{info.name.replace('_', '-')}", ("optimizations", name, info.name), info)
        for info in describe(entry.options)
        if info.name != "mode"
    ]


def _read_optimizations(values: Values, parsed: argparse.Namespace) -> None:
    """Write the given optimizations and their options into `values`.

    Raises:
        ConfigError: a value is invalid, or an option belongs to an optimization that is off.
    """
    problems: list[str] = []
    for name in discover("trainer.optimizations", Optimization):
        _read_optimization(values, name, getattr(parsed, name, None))
        for flag in _option_flags(name):
            given = getattr(parsed, flag.flag.replace("-", "_"), None)
            if given is None:
                continue
            if name not in values["optimizations"]:
                on = f"--{name.replace('_', '-')}"
                problems.append(f"--{flag.flag} has no effect because {name} is off. Add {on}.")
                continue
            try:
                _put(values, flag.path, parse_value(flag.info, given))
            except ConfigError as error:
                problems += error.problems
    if problems:
        raise ConfigError(problems)


def _read_optimization(values: Values, name: str, given: bool | str | None) -> None:
    if given is None:
        return
    # A copy, because to_json() hands out the dict of a frozen RunConfig.
    values["optimizations"] = dict(values["optimizations"])
    if given is False or given == "off":
        values["optimizations"].pop(name, None)
    else:
        values["optimizations"][name] = {} if given is True else {"mode": given}


def _spell(value: object) -> str:
    """Return a value as a person would type it: 30, not 30.0."""
    # Up to 1e15 a float holds every integer exactly.
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _put(values: Values, path: tuple[str, ...], value: object) -> None:
    for key in path[:-1]:
        values = values[key]
    values[path[-1]] = value


def _get(values: Values, path: tuple[str, ...], default: object) -> object:
    for key in path:
        if key not in values:
            return default
        values = values[key]
    return values


def refuse_missing_data(config: RunConfig) -> None:
    """Raise ConfigError if a configuration has neither a train CSV nor a data folder."""
    if not (config.data.train_csv or config.data.train_data):
        raise ConfigError(
            FieldProblem(
                "There is no training data. Choose a train CSV or a data folder (--train-csv FILE "
                "or --train-data FOLDER).",
                "data.train_csv",
            )
        )

"""Resolve the names in a RunConfig to registry entries, with their options built and checked."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from trainer.config.schedules import SCHEDULES
from trainer.core.errors import ConfigError, FieldProblem, UnknownEntry, within
from trainer.core.options import OptionInfo, Options, build_options, describe, unknown_name
from trainer.core.registry import find
from trainer.core.run_config import Choice, RunConfig, absolute_path, current_optimizer
from trainer.core.specs import STAGES, ModelFamily, Optimization, OptimizerSpec, Schedule


@dataclass(frozen=True)
class Entries:
    """The registry entries that a RunConfig names, each with its options built and checked."""

    family: ModelFamily
    family_options: Options
    optimizer: OptimizerSpec
    optimizer_options: Options
    schedule: Schedule
    schedule_options: Options
    optimizations: list[tuple[Optimization, Options]]


def resolve(config: RunConfig) -> Entries:
    """Look up every entry that a RunConfig names and build its options.

    Raises:
        ConfigError: lists every unknown name, unknown option and bad value.
    """
    # All problems are collected before raising, so that a form shows them together, not one a try.
    problems: list[str] = []
    found: dict[str, Options] = {}
    for key, choice, lookup in (
        ("family", config.family, find_family),
        ("optimizer", config.optimizer, find_optimizer),
        ("schedule", config.schedule, find_schedule),
    ):
        try:
            found[key] = lookup(choice.name)
            found[f"{key}_options"] = _options_of(found[key], choice)
        except ConfigError as error:
            problems += within(f"{key}.{choice.name}", error.problems)
    optimizations = []
    for name, values in config.optimizations.items():
        try:
            entry = find("trainer.optimizations", Optimization, name)
            optimizations.append((entry, _options_of(entry, Choice(name, values))))
        except ConfigError as error:
            problems += within(f"optimization.{name}", error.problems)
    if problems:
        raise ConfigError(problems)
    # By stage, then by name, so that the order in which they were chosen makes no difference.
    optimizations.sort(key=lambda pair: (STAGES.index(pair[0].stage), pair[0].name))
    return Entries(**found, optimizations=optimizations)


def with_absolute_paths(
    config: RunConfig, absolute: Callable[[str], str] = absolute_path
) -> RunConfig:
    """Return a copy whose paths, including those in the family's options, work from any folder.

    `absolute` converts a path; by default, paths are relative to the working folder.
    """
    options = dict(config.family.options)
    for info in _path_options(config):
        if path := str(options.get(info.name) or "").strip():
            options[info.name] = absolute(path)
    family = replace(config.family, options=options)
    return config.with_values(family=family).with_absolute_paths(absolute)


def missing_files(config: RunConfig) -> list[FieldProblem]:
    """Return a sentence for each file or folder that a configuration names but that is missing.

    Checked are the CSVs, the base checkpoint and the files in the family's options.
    """
    data, family = config.data, config.family
    named = {
        "data.train_csv": ("train CSV", data.train_csv),
        "data.eval_csv": ("eval CSV", data.eval_csv),
        "data.train_data": ("data folder", data.train_data),
        "base": ("base checkpoint", config.base),
    }
    absent = [
        FieldProblem(f"The {label} {path} does not exist. Check the path.", field)
        for field, (label, path) in named.items()
        if path and not os.path.exists(path)
    ]
    for info in _path_options(config):
        path = family.options.get(info.name)
        if path and not os.path.exists(path):
            text = f"The file {path} under {info.label} does not exist. Check the path."
            absent.append(FieldProblem(text, f"family.{family.name}.{info.name}"))
    return absent


def mismatches(entries: Entries) -> list[FieldProblem]:
    """Return a sentence for each pair of entries that cannot be combined."""
    optimizer, schedule = entries.optimizer, entries.schedule
    # An empty list of schedules allows all of them.
    if not optimizer.schedules or schedule.name in optimizer.schedules:
        return []
    text = (
        f"{optimizer.label} does not work with the schedule {schedule.label}. Choose one of: "
        f"{', '.join(optimizer.schedules)}."
    )
    return [FieldProblem(text, "schedule.choice")]


def _path_options(config: RunConfig) -> list[OptionInfo]:
    infos = describe(find_family(config.family.name).options)
    return [info for info in infos if info.is_path]


def find_family(name: str) -> ModelFamily:
    """Return a model family by name."""
    return find("trainer.models", ModelFamily, name)


def find_optimizer(name: str) -> OptimizerSpec:
    """Return an optimizer by its name or by an old name."""
    return find("trainer.optimizers", OptimizerSpec, current_optimizer(Choice(name)).name)


def find_schedule(name: str) -> Schedule:
    """Return a schedule by name."""
    if name not in SCHEDULES:
        raise UnknownEntry(unknown_name(name, list(SCHEDULES), "schedule"))
    return SCHEDULES[name]


def find_base_lr(entries: Entries) -> float:
    """Return the peak learning rate: the chosen one, or the usual one if none was chosen."""
    return entries.optimizer_options.lr or find_usual_lr(entries.family, entries.optimizer)


def find_usual_lr(family: ModelFamily, optimizer: OptimizerSpec) -> float:
    """Return the usual peak learning rate of an optimizer for a family.

    It is the rate that the family names for this optimizer, or one in proportion to the family's
    rate for a related optimizer, or the optimizer's own default.
    """
    known = family.learning_rates
    if optimizer.name in known:
        return known[optimizer.name]
    if optimizer.rate_follows not in known:
        return optimizer.default_lr
    # Lion's usual rate is a fifth of AdamW's, for example: if a family needs twice AdamW's default,
    # it needs twice Lion's as well.
    leader = find_optimizer(optimizer.rate_follows)
    # Scaled, because a family names rates for only a few of the optimizers.
    rate = known[leader.name] * optimizer.default_lr / leader.default_lr
    return float(f"{rate:.4g}")  # four digits: a rate that people read and type


def count_steps(config: RunConfig, steps_per_epoch: int) -> int:
    """Return the steps of a run: as set, from its epochs, or 30 epochs but at least 300 steps."""
    if config.training.steps is not None:
        return config.training.steps
    # Rounded up, because a fraction of an epoch of a tiny corpus may be less than one step.
    if config.training.epochs is not None:
        return max(1, math.ceil(config.training.epochs * steps_per_epoch))
    # Chosen by hand. The minimum is for tiny corpora, whose epochs are only a few steps.
    return max(300, 30 * steps_per_epoch)


def _options_of(
    entry: ModelFamily | OptimizerSpec | Schedule | Optimization, choice: Choice
) -> Options:
    return build_options(entry.options, choice.options, entry.name)

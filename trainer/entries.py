"""Entries: the catalog entries a RunConfig names, with their options built and checked."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from trainer.catalog import find
from trainer.config import Choice, RunConfig, absolute_path
from trainer.errors import ConfigError, FieldProblem, UnknownEntry, within
from trainer.options import OptionInfo, build_options, describe, unknown_name
from trainer.schedules import SCHEDULES
from trainer.setup import STAGES
from trainer.specs import ModelFamily, Optimization, OptimizerSpec, Schedule


@dataclass(frozen=True)
class Entries:
    """The catalog entries a RunConfig names, with their options built and checked."""

    family: ModelFamily
    family_options: Any
    optimizer: OptimizerSpec
    optimizer_options: Any
    schedule: Schedule
    schedule_options: Any
    optimizations: list[tuple[Optimization, Any]]


def resolve(config: RunConfig) -> Entries:
    """Look up every entry a RunConfig names and build its options.

    Raises:
        ConfigError: lists every unknown name, unknown option and bad value at once.
    """
    problems: list[str] = []
    found: dict[str, Any] = {}
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
    optimizations.sort(key=lambda pair: (STAGES.index(pair[0].stage), pair[0].name))
    return Entries(**found, optimizations=optimizations)


def with_absolute_paths(
    config: RunConfig, absolute: Callable[[str], str] | None = None
) -> RunConfig:
    """Return a copy whose paths, the family's own among them, hold from any working folder.

    `absolute` says where the family's relative paths start; without it, at the working folder.
    """
    options = dict(config.family.options)
    for info in _path_options(config):
        if path := str(options.get(info.name) or "").strip():
            options[info.name] = (absolute or absolute_path)(path)
    return replace(config, family=replace(config.family, options=options)).with_absolute_paths()


def missing_files(config: RunConfig) -> list[FieldProblem]:
    """Return a sentence for each file or folder that a configuration names and that is not there.

    These are its lists, its base checkpoint, and what the family's own options name.
    """
    data, family = config.data, config.family
    named = {
        "data.train_csv": ("train CSV", data.train_csv),
        "data.eval_csv": ("eval CSV", data.eval_csv),
        "data.train_data": ("data folder", data.train_data),
        "base": ("base checkpoint", config.base),
    }
    absent = [
        FieldProblem(f"The {label} {path} does not exist. Give the path of one that does.", field)
        for field, (label, path) in named.items()
        if path and not os.path.exists(path)
    ]
    for info in _path_options(config):
        path = family.options.get(info.name)
        if path and not os.path.exists(path):
            text = (
                f"The file {path} under {info.label} does not exist. Give the path of one that "
                "does."
            )
            absent.append(FieldProblem(text, f"family.{family.name}.{info.name}"))
    return absent


def mismatches(entries: Entries) -> list[FieldProblem]:
    """Return a sentence for each pair of entries that do not go together."""
    optimizer, schedule = entries.optimizer, entries.schedule
    if not optimizer.schedules or schedule.name in optimizer.schedules:
        return []
    text = (
        f"{optimizer.label} does not go with the schedule {schedule.label}. Choose: "
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
    """Return an optimizer by name."""
    return find("trainer.optimizers", OptimizerSpec, name)


def find_schedule(name: str) -> Schedule:
    """Return a schedule by name."""
    if name not in SCHEDULES:
        raise UnknownEntry(unknown_name(name, list(SCHEDULES), "schedule"))
    return SCHEDULES[name]


def find_base_lr(entries: Entries) -> float:
    """Return the peak learning rate: as chosen, else the usual one."""
    return entries.optimizer_options.lr or find_usual_lr(entries.family, entries.optimizer)


def find_usual_lr(family: ModelFamily, optimizer: OptimizerSpec) -> float:
    """Return the usual peak rate: the family's, or in proportion to a relative's, or its own."""
    known = family.learning_rates
    if optimizer.name in known:
        return known[optimizer.name]
    if optimizer.rate_follows not in known:
        return optimizer.default_lr
    leader = find_optimizer(optimizer.rate_follows)
    rate = known[leader.name] * optimizer.default_lr / leader.default_lr
    return float(f"{rate:.4g}")


def count_steps(config: RunConfig, steps_per_epoch: int) -> int:
    """Return the steps of a run: as told, from its epochs, or 30 epochs and at least 300."""
    if config.training.steps is not None:
        return config.training.steps
    if config.training.epochs is not None:
        return max(1, math.ceil(config.training.epochs * steps_per_epoch))
    return max(300, 30 * steps_per_epoch)


def _options_of(entry: Any, choice: Choice) -> Any:
    return build_options(entry.options, choice.options, entry.name)

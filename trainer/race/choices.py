"""The options of a race, shared by the page and the command line."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.core.errors import ConfigError
from trainer.core.options import option
from trainer.core.run_config import RunConfig
from trainer.race.contenders import read_contenders
from trainer.race.plan import RacePlan
from trainer.race.verdict import describe_power


@dataclass(frozen=True)
class RaceChoices:
    """Which optimizers race, on what budget, and how often."""

    optimizers: str = option(
        "adamw,prodigy,schedule_free_adamw",
        "Optimizers",
        "The optimizers to compare, the baseline first. adamw:lr=1e-4:beta2=0.98 sets options; "
        "adamw:lr=1e-4/1e-3 tries these two rates.",
    )
    minutes: float | None = option(
        None, "Minutes", "For the whole race; sets how many steps each run gets.", min=0.1
    )
    seeds: str = option("1,2,3", "Seeds", "Two or more; every optimizer runs with every seed.")
    # Five and 12 are chosen by hand: five rates at the default spacing span a factor of 64, and 12
    # points show the shape of a curve while validation stays a small part of a run.
    rates: int = option(
        5,
        "Rates to try",
        "Rates that each optimizer tries first; 1: its default only.",
        min=1,
        max=15,
    )
    # At least 10 steps, as for every run (MIN_STEPS): fewer than the warm-up show nothing.
    sweep_steps: int | None = option(
        None, "Steps of these tries", "Empty: a quarter of a run's steps.", min=10, advanced=True
    )
    validations: int = option(12, "Validations", "Points on each loss curve.", min=1, advanced=True)
    keep_weights: bool = option(
        False, "Keep weights", "Keep the checkpoints of finished runs.", advanced=True
    )


def plan_race(config: RunConfig, choices: RaceChoices) -> RacePlan:
    """Return the plan of a race with a configuration's clips, model and settings.

    Raises:
        ConfigError: lists every invalid choice.
    """
    return RacePlan(
        config=config,
        entrants=read_contenders(choices.optimizers, config, choices.rates),
        seeds=read_seeds(choices.seeds),
        steps=config.training.steps,
        minutes=choices.minutes,
        sweep_steps=choices.sweep_steps,
        num_validations=choices.validations,
        keep_weights=choices.keep_weights,
    )


def read_seeds(text: str) -> tuple[int, ...]:
    """Read seeds separated by commas.

    Raises:
        ConfigError: one of them is not an integer.
    """
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        raise ConfigError(f"'{text}' is not a list of seeds; enter for example 1,2,3.") from None


def power_of(optimizers: Sequence[str] | None, seeds: str | None) -> str:
    """Say what difference a race can detect; empty while it has too few seeds or optimizers."""
    try:
        num_seeds = len(set(read_seeds(seeds or "")))
    except ConfigError:
        return ""
    # Below two there is nothing to compare, and Student's t has no degrees of freedom.
    num_contenders = len(optimizers or [])
    return describe_power(num_seeds, num_contenders) if min(num_seeds, num_contenders) >= 2 else ""

"""Choices: what a person decides about a race, the same fields on the page and in the words."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.core.errors import ConfigError
from trainer.core.options import option
from trainer.core.run_config import RunConfig
from trainer.race.contenders import read_entrants
from trainer.race.plan import RacePlan
from trainer.race.verdict import foretell


@dataclass(frozen=True)
class RaceChoices:
    """Who races, on which budget and how often."""

    optimizers: str = option(
        "adamw,prodigy,schedule_free_adamw",
        "Optimizers",
        "Who races, the baseline first; adamw:lr=1e-4:beta2=0.98 fixes options, "
        "adamw:lr=1e-4/1e-3 tries these rates.",
    )
    minutes: float | None = option(
        None, "Minutes", "For the whole race; the steps of a run are found from it.", min=0.1
    )
    seeds: str = option("1,2,3", "Seeds", "Two or more; each optimizer runs with each of them.")
    rates: int = option(
        5, "Rates to try", "Rates each optimizer tries first; 1: its usual one.", min=1, max=15
    )
    sweep_steps: int | None = option(
        None, "Steps of these tries", "Empty: a quarter of the steps of a run.", min=10, folded=True
    )
    validations: int = option(12, "Validations", "Points of each curve.", min=1, folded=True)
    keep_weights: bool = option(
        False, "Keep weights", "Keep the checkpoints of runs that ended.", folded=True
    )


def plan_race(config: RunConfig, choices: RaceChoices) -> RacePlan:
    """Return the plan of a race over a configuration's clips, model and settings.

    Raises:
        ConfigError: names every choice that cannot be used.
    """
    return RacePlan(
        config=config,
        entrants=read_entrants(choices.optimizers, config, choices.rates),
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
        ConfigError: one of them is no whole number.
    """
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        raise ConfigError(f"The seeds are '{text}'; expected for example 1,2,3") from None


def promise_of(optimizers: Sequence[str] | None, seeds: str | None) -> str:
    """Say what difference a race could tell; nothing while its seeds or optimizers are too few."""
    try:
        num_seeds = len(set(read_seeds(seeds or "")))
    except ConfigError:
        return ""
    num_entrants = len(optimizers or [])
    return foretell(num_seeds, num_entrants) if min(num_seeds, num_entrants) >= 2 else ""

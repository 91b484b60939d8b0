"""The immutable plan of a race, stored as JSON."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from trainer.config.resolve import find_schedule
from trainer.config.schedules import find_warmup_steps
from trainer.core.errors import ConfigError
from trainer.core.options import build_options
from trainer.core.run_config import Choice, RunConfig

FORMAT = 1
# Chosen by hand: with fewer, the warm-up steps that are not timed make up most of a run.
MIN_STEPS = 10
SWEEP_SHARE = 4
"""A sweep run has this fraction of a run's steps; chosen by hand: cheap, yet past the warm-up."""
MOST_EXTENSIONS = 8
"""Values that a sweep may add; chosen by hand: at the default spacing, a factor of 4096."""
_EARLIER_EXTENSIONS = 2
"""The limit in plans from before `most_extensions`; a finished race must not ask for more runs."""
# The paper on AdEMAMix ramps over the whole run; 5 % of warm-up is chosen by hand.
PACED = {"warmup_steps": 0.05, "ramp_steps": 1.0}
"""Optimizer options that count steps, as shares of a run; their defaults are for long runs."""


@dataclass(frozen=True)
class Contender:
    """One optimizer in a race, also called a contender.

    `values` are tried for its `knob` (the learning rate, or the option that replaces it) in short
    runs, each `ratio` times the one before; a single value is used without a sweep. While the best
    value is at an end, the sweep extends beyond it, within `least` and `most`. `paced` names the
    options that are set to a share of each run's steps.
    """

    name: str
    optimizer: Choice
    schedule: Choice
    knob: str
    values: tuple[float, ...]
    ratio: float
    least: float
    most: float
    paced: tuple[str, ...] = ()


@dataclass(frozen=True)
class RacePlan:
    """Which optimizers race, on what data, how often and how long; the first is the baseline.

    `steps` is per run; `minutes` is for the whole race and determines the steps. With both, the
    smaller number of steps applies. `num_validations` is per run. `most_extensions` limits the
    values that a sweep adds until its best one lies between two others.
    """

    config: RunConfig
    entrants: tuple[Contender, ...]
    seeds: tuple[int, ...]
    steps: int | None = None
    minutes: float | None = None
    sweep_steps: int | None = None
    num_validations: int = 12
    keep_weights: bool = False
    most_extensions: int = MOST_EXTENSIONS

    def __post_init__(self) -> None:
        problems = []
        names = [contender.name for contender in self.entrants]
        if len(names) < 2 or len(set(names)) < len(names):
            problems.append(f"The race has {names}. Give two or more optimizers: adamw,prodigy")
        # Equal seeds would repeat the same run bit for bit and make the interval too narrow.
        are_different = len(set(self.seeds)) == len(self.seeds)
        if len(self.seeds) < 2 or not are_different or min(self.seeds) < 0:
            problems.append(
                f"The seeds are {list(self.seeds)}. Give two or more different seeds: without "
                "repetition, no difference can be distinguished from chance."
            )
        if self.steps is None and self.minutes is None:
            problems.append("The race has no end. Give --steps per run or --minutes in total.")
        for label, steps in (("race", self.steps), ("sweep", self.sweep_steps)):
            if steps is not None and steps < MIN_STEPS:
                problems.append(
                    f"The runs of the {label} have {steps} steps; use at least {MIN_STEPS}."
                )
        if problems:
            raise ConfigError(problems)

    @property
    def baseline(self) -> Contender:
        """The contender that all others are compared with."""
        return self.entrants[0]

    @property
    def sweep_seed(self) -> int:
        """A seed that no run of the race uses, so that rates are not tuned on the scored seeds."""
        # Derived from the seeds, so it needs no storage and a resumed race uses the same one.
        return max(self.seeds) + 1

    def sweep_steps_for(self, steps: int) -> int:
        """Return the steps of a sweep run: as configured, else a quarter of a run's."""
        return self.sweep_steps or max(MIN_STEPS, steps // SWEEP_SHARE)

    def run_config(
        self, contender: Contender, value: float, *, seed: int, steps: int, num_validations: int
    ) -> RunConfig:
        """Return the configuration of one run: the common one plus a contender's settings."""
        training = self.config.training
        every = training.validate_every
        # `auto` is resolved here, so that curves of different lengths have equally many points.
        if every.strip().lower() == "auto":
            every = f"{max(1, round(steps / num_validations))} steps"
        # Every run goes to its last step, so that all schedules complete: no early stopping and no
        # rollback. Previews would only cost time.
        training = replace(
            training, steps=steps, epochs=None, seed=seed, patience=0, preview_every="never",
            log_every=1, keep_last=1, validate_every=every, roll_back=False,
        )  # fmt: skip
        # The knob comes last, so that the swept value wins over one given in the options.
        options = contender.optimizer.options | {contender.knob: value}
        options |= {name: max(1, round(PACED[name] * steps)) for name in contender.paced}
        optimizer = Choice(contender.optimizer.name, options)
        schedule = _fitted(contender.schedule, steps)
        return self.config.with_values(training=training, optimizer=optimizer, schedule=schedule)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `from_json` turns back into an equal plan."""
        rest = {field.name: getattr(self, field.name) for field in fields(self)}
        entrants = [asdict(contender) for contender in self.entrants]
        return {"format": FORMAT} | rest | {"config": self.config.to_json(), "entrants": entrants}

    @staticmethod
    def from_json(values: dict[str, Any]) -> "RacePlan":
        """Build a plan from JSON values.

        Raises:
            ConfigError: they are not a plan, or come from a newer version.
        """
        if values.get("format") != FORMAT:
            raise ConfigError(
                f"This race has format {values.get('format')!r}, and this version reads {FORMAT}. "
                "Open it with the version that created it."
            )
        rest: dict[str, Any] = {"most_extensions": _EARLIER_EXTENSIONS} | values
        del rest["format"]
        try:
            entrants = tuple(_read_contender(contender) for contender in rest.pop("entrants"))
            config = RunConfig.from_json(rest.pop("config"))
            seeds = tuple(rest.pop("seeds"))
            return RacePlan(config=config, entrants=entrants, seeds=seeds, **rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"The plan of this race cannot be read: {error!r}.") from None


def _fitted(schedule: Choice, steps: int) -> Choice:
    """Return a schedule with its warm-up shortened to at most a tenth of a run (chosen by hand)."""
    usual = build_options(find_schedule(schedule.name).options, schedule.options, schedule.name)
    longest = max(1, steps // 10)
    if find_warmup_steps(usual, steps) <= longest:
        return schedule
    return Choice(schedule.name, schedule.options | {"warmup_steps": longest})


def _read_contender(values: dict[str, Any]) -> Contender:
    contender = Contender(**values)
    # JSON turns tuples into lists and choices into objects; equality needs the original types.
    return replace(
        contender,
        optimizer=Choice(**values["optimizer"]),
        schedule=Choice(**values["schedule"]),
        values=tuple(values["values"]),
        paced=tuple(values["paced"]),
    )

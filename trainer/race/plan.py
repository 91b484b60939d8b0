"""RacePlan: everything that is decided before a race; frozen, JSON in and out."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from trainer.config.resolve import find_schedule
from trainer.config.schedules import find_warmup_steps
from trainer.core.errors import ConfigError
from trainer.core.options import build_options
from trainer.core.run_config import Choice, RunConfig

FORMAT = 1
FEWEST_STEPS = 10
SWEEP_SHARE = 4
MOST_EXTENSIONS = 8
_EARLIER_EXTENSIONS = 2
"""What races of a time without `most_extensions` had; a finished one must not want more runs."""
PACED = {"warmup_steps": 0.05, "ramp_steps": 1.0}
"""Options of optimizers that count steps, as shares of a run; their defaults suit long runs."""


@dataclass(frozen=True)
class Entrant:
    """One optimizer in a race.

    `values` are tried for its `knob` (the learning rate, or what stands for it) in short runs, each
    `ratio` times the one before; a single value is taken as it is. While the best one is at an end,
    the sweep goes on beyond it, but never below `least` or above `most`. `paced` names the options
    that are set to a share of each run's steps.
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
    """Who races, on what, how often and how long; the first entrant is the baseline.

    `steps` of every run, or `minutes` for the whole race, from which the steps are found; with both
    the smaller counts. `num_validations` is per run. `most_extensions` bounds the values that a
    sweep adds until its best one lies between two others.
    """

    config: RunConfig
    entrants: tuple[Entrant, ...]
    seeds: tuple[int, ...]
    steps: int | None = None
    minutes: float | None = None
    sweep_steps: int | None = None
    num_validations: int = 12
    keep_weights: bool = False
    most_extensions: int = MOST_EXTENSIONS

    def __post_init__(self) -> None:
        problems = []
        names = [entrant.name for entrant in self.entrants]
        if len(names) < 2 or len(set(names)) < len(names):
            problems.append(f"The race has {names}. Give two or more optimizers: adamw,prodigy")
        are_different = len(set(self.seeds)) == len(self.seeds)
        if len(self.seeds) < 2 or not are_different or min(self.seeds) < 0:
            problems.append(
                f"The seeds are {list(self.seeds)}. Give two or more different ones: without "
                "a repetition no difference can be told from chance."
            )
        if self.steps is None and self.minutes is None:
            problems.append("The race has no end. Give --steps for every run or --minutes for all.")
        for label, steps in (("race", self.steps), ("sweep", self.sweep_steps)):
            if steps is not None and steps < FEWEST_STEPS:
                problems.append(
                    f"The runs of the {label} have {steps} steps; {FEWEST_STEPS} or more."
                )
        if problems:
            raise ConfigError(problems)

    @property
    def baseline(self) -> Entrant:
        """The entrant that all others are compared with."""
        return self.entrants[0]

    @property
    def sweep_seed(self) -> int:
        """A seed that no run of the race has, so that rates are not chosen on what is judged."""
        return max(self.seeds) + 1

    def sweep_steps_for(self, steps: int) -> int:
        """Return the steps of a sweep run: as told, else a quarter of the race's."""
        return self.sweep_steps or max(FEWEST_STEPS, steps // SWEEP_SHARE)

    def run_config(
        self, entrant: Entrant, value: float, *, seed: int, steps: int, num_validations: int
    ) -> RunConfig:
        """Return the configuration of one run: the common one but for what an entrant brings."""
        training = self.config.training
        every = training.validate_every
        if every.strip().lower() == "auto":
            every = f"{max(1, round(steps / num_validations))} steps"
        training = replace(
            training, steps=steps, epochs=None, seed=seed, patience=0, preview_every="never",
            log_every=1, keep_last=1, validate_every=every, roll_back=False,
        )  # fmt: skip
        options = entrant.optimizer.options | {entrant.knob: value}
        options |= {name: max(1, round(PACED[name] * steps)) for name in entrant.paced}
        optimizer = Choice(entrant.optimizer.name, options)
        schedule = _fitted(entrant.schedule, steps)
        return self.config.with_values(training=training, optimizer=optimizer, schedule=schedule)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `from_json` reads back to an equal plan."""
        rest = {field.name: getattr(self, field.name) for field in fields(self)}
        entrants = [asdict(entrant) for entrant in self.entrants]
        return {"format": FORMAT} | rest | {"config": self.config.to_json(), "entrants": entrants}

    @staticmethod
    def from_json(values: dict[str, Any]) -> "RacePlan":
        """Build a plan from JSON values.

        Raises:
            ConfigError: they are not a plan, or one of a newer Timbre.
        """
        if values.get("format") != FORMAT:
            raise ConfigError(
                f"This race has format {values.get('format')!r}; this Timbre reads {FORMAT}. Open "
                "it with the version that made it."
            )
        rest: dict[str, Any] = {"most_extensions": _EARLIER_EXTENSIONS} | values
        del rest["format"]
        try:
            entrants = tuple(_read_entrant(entrant) for entrant in rest.pop("entrants"))
            config = RunConfig.from_json(rest.pop("config"))
            seeds = tuple(rest.pop("seeds"))
            return RacePlan(config=config, entrants=entrants, seeds=seeds, **rest)
        except (KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"The race's plan cannot be read: {error!r}.") from None


def _fitted(schedule: Choice, steps: int) -> Choice:
    """Return a schedule whose warm-up takes at most a tenth of a run; those of long runs do not."""
    usual = build_options(find_schedule(schedule.name).options, schedule.options, schedule.name)
    longest = max(1, steps // 10)
    if find_warmup_steps(usual, steps) <= longest:
        return schedule
    return Choice(schedule.name, schedule.options | {"warmup_steps": longest})


def _read_entrant(values: dict[str, Any]) -> Entrant:
    entrant = Entrant(**values)
    return replace(
        entrant,
        optimizer=Choice(**values["optimizer"]),
        schedule=Choice(**values["schedule"]),
        values=tuple(values["values"]),
        paced=tuple(values["paced"]),
    )

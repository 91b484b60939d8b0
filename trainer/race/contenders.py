"""Parse the optimizers of a race from text such as `adamw,prodigy:beta2=0.99`."""

from collections.abc import Mapping
from dataclasses import replace

from trainer.config.resolve import Entries, find_base_lr, find_optimizer, resolve
from trainer.core.errors import ConfigError
from trainer.core.options import OptionInfo, describe, to_values
from trainer.core.run_config import Choice, RunConfig
from trainer.race.plan import PACED, Contender

_OCTAVES_APART = 1.5
"""Distance of the rates to try: a factor of 2.8. Chosen by hand, so that the five default rates
span a factor of 64 around the usual rate."""
_SPREAD_OF_COEFFICIENT = 3.0
"""Prodigy's coefficient is tried from a third to three times its default; the rate that it finds
needs much less tuning. Chosen by hand."""
# Finite, because the bound is stored in race.json, and JSON has no infinity.
_NO_LIMIT = 1e9
_FAST_KNOB = "d_coef"
"""Optimizers that find the rate themselves are tuned by this option instead of the rate."""


def read_contenders(text: str, config: RunConfig, num_values: int) -> tuple[Contender, ...]:
    """Read comma-separated contenders, each a name with optional `:option=value` parts.

    `adamw` sweeps `num_values` learning rates around the model family's default; `adamw:lr=1e-4`
    uses that rate without a sweep; `adamw:lr=1e-4/1e-3` sweeps these two.

    Raises:
        ConfigError: lists every unknown name, unknown option and bad value.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    contenders: list[Contender] = []
    problems: list[str] = []
    for word in words:
        try:
            contenders.append(
                _read_contender(word, config, num_values, [e.name for e in contenders])
            )
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return tuple(contenders)


def _read_contender(word: str, config: RunConfig, num_values: int, taken: list[str]) -> Contender:
    optimizer, *pairs = word.split(":")
    if any("=" not in pair for pair in pairs):
        raise ConfigError(f"'{word}' is not valid; enter for example adamw:lr=1e-4:beta2=0.98")
    given: dict[str, str] = dict(pair.split("=", 1) for pair in pairs)
    infos = {info.name: info for info in describe(find_optimizer(optimizer).options)}
    # A user who sets `lr` of such an optimizer wants that rate, so it is tuned as for any other.
    knob = _FAST_KNOB if _FAST_KNOB in infos and "lr" not in given else "lr"
    told = given.pop(knob, None)
    schedule = _schedule_for(optimizer, config)
    # Checks all options together, exactly as a run would.
    entries = _resolve(config, optimizer, given, schedule)
    used = to_values(entries.optimizer_options)
    plain = {name: used[name] for name in given}
    values, ratio = _values(entries, infos[knob], told, num_values)
    for value in values:
        # A value outside the limits fails here, not hours later in the middle of the sweep.
        _resolve(config, optimizer, {**given, knob: value}, schedule)
    number = sum(name == optimizer or name.startswith(f"{optimizer}-") for name in taken) + 1
    return Contender(
        # Runs are folders named after contenders, so two settings of one optimizer need two names.
        name=optimizer if number == 1 else f"{optimizer}-{number}",
        optimizer=Choice(optimizer, plain),
        schedule=schedule,
        knob=knob,
        values=values,
        ratio=ratio,
        least=infos[knob].min or 0.0,
        most=infos[knob].max or _NO_LIMIT,
        paced=tuple(name for name in PACED if name in infos and name not in given),
    )


def _schedule_for(optimizer: str, config: RunConfig) -> Choice:
    allowed = find_optimizer(optimizer).schedules
    # Some optimizers, Schedule-Free for example, exclude schedules that lower the rate.
    fits = not allowed or config.schedule.name in allowed
    return config.schedule if fits else Choice(allowed[0])


def _resolve(
    config: RunConfig, name: str, options: Mapping[str, object], schedule: Choice
) -> Entries:
    return resolve(replace(config, optimizer=Choice(name, dict(options)), schedule=schedule))


def _values(
    entries: Entries, knob: OptionInfo, told: str | None, num_values: int
) -> tuple[tuple[float, ...], float]:
    """Return the values to try in ascending order, and the ratio between neighbours."""
    if told is not None:
        values = tuple(sorted({_number(part, told) for part in told.split("/")}))
        # Only a known ratio lets the sweep extend; 1.0 marks a single value, which never does.
        return values, values[1] / values[0] if len(values) > 1 and values[0] > 0 else 1.0
    if num_values == 1:
        return (_usual(entries, knob.name),), 1.0
    half = (num_values - 1) / 2
    ratio = 2**_OCTAVES_APART
    if knob.name == _FAST_KNOB:
        # The root keeps the outermost values at the same spread, however many are tried.
        ratio = _SPREAD_OF_COEFFICIENT ** (1 / max(1.0, half))
    least, most = knob.min or 0.0, knob.max or _NO_LIMIT
    usual = _usual(entries, knob.name)
    wanted = [usual * ratio ** (index - half) for index in range(num_values)]
    return tuple(float(f"{value:.4g}") for value in wanted if least <= value <= most), ratio


def _usual(entries: Entries, knob: str) -> float:
    return find_base_lr(entries) if knob == "lr" else getattr(entries.optimizer_options, knob)


def _number(part: str, told: str) -> float:
    try:
        return float(part)
    except ValueError:
        raise ConfigError(
            f"'{told}' is not a number; enter for example 1e-4, or 1e-4/1e-3 to try both."
        ) from None

"""Schedules: pure functions from a step to a learning-rate factor, and their table."""

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from trainer.errors import ConfigError, FieldProblem
from trainer.options import option
from trainer.specs import Schedule

_WARMUP_SHARE = 0.05
_LONGEST_AUTO_WARMUP = 1000
_WARMUP_HELP = "Steps until the full rate. Empty: 5 % of the run, at most 1000."


@dataclass(frozen=True)
class ConstantOptions:
    """The options of the constant schedule."""

    warmup_steps: int = option(0, "Warm-up (steps)", "Steps until the full rate; 0: none.", min=0)


@dataclass(frozen=True)
class LinearOptions:
    """The options of the linear schedule."""

    warmup_steps: int | None = option(None, "Warm-up (steps)", _WARMUP_HELP, min=0)
    final_share: float = option(
        0.0, "Final share", "Share of the rate that is left at the last step.", min=0.0, max=1.0
    )


@dataclass(frozen=True)
class CosineOptions:
    """The options of the cosine schedule."""

    warmup_steps: int | None = option(None, "Warm-up (steps)", _WARMUP_HELP, min=0)
    final_share: float = option(
        0.05, "Final share", "Share of the rate that is left at the last step.", min=0.0, max=1.0
    )


@dataclass(frozen=True)
class PlateauOptions:
    """The options of warm-up, plateau, anneal."""

    warmup_steps: int = option(8000, "Warm-up (steps)", "Steps until the full rate.", min=0)
    milestones: str = option(
        "200000,400000,600000",
        "Milestones (steps)",
        "After each of these steps the rate is multiplied once more.",
    )
    rate: float = option(
        0.5, "Anneal rate", "What the rate is multiplied by at a milestone.", min=0.0, max=1.0
    )

    def __post_init__(self) -> None:
        parse_milestones(self.milestones)


@dataclass(frozen=True)
class NoamOptions:
    """The options of the Noam schedule."""

    warmup_steps: int = option(4000, "Warm-up (steps)", "Steps until the peak.", min=1)
    convention: str = option(
        "peak",
        "Convention",
        "peak: the learning rate is the peak, at the end of the warm-up. paper: it is multiplied "
        "by width^-0.5 * min(step^-0.5, step * warm-up^-1.5), so give 1. The first factor, 0.0625 "
        "for width 256, is no learning rate: with a warm-up of 4000 the peak is 0.0625 / "
        "sqrt(4000) = 9.9e-4.",
        choices=("peak", "paper"),
    )
    width: int = option(
        256, "Model width", "Used by the paper's convention only.", min=1, folded=True
    )
    milestones: str = option(
        "",
        "Milestones (steps)",
        "After each of these steps the rate is multiplied once more; empty: none. "
        "The published FastSpeech 2 has 300000,400000,500000 and 0.3.",
        folded=True,
    )
    rate: float = option(
        0.3,
        "Anneal rate",
        "What the rate is multiplied by at a milestone.",
        min=0.0,
        max=1.0,
        folded=True,
    )

    def __post_init__(self) -> None:
        parse_milestones(self.milestones)


def constant(step: int, total_steps: int, options: ConstantOptions) -> float:
    """Rise to the full rate, then stay."""
    return _rise(step, options.warmup_steps)


def linear(step: int, total_steps: int, options: LinearOptions) -> float:
    """Rise to the full rate, then fall evenly to the final share at the last step."""
    warmup_steps = find_warmup_steps(options, total_steps)
    if step <= warmup_steps:
        return _rise(step, warmup_steps)
    fallen = _progress(step, warmup_steps, total_steps)
    return 1.0 - (1.0 - options.final_share) * fallen


def cosine(step: int, total_steps: int, options: CosineOptions) -> float:
    """Rise to the full rate, then fall along half a cosine (Loshchilov & Hutter 2017, eq. 5)."""
    warmup_steps = find_warmup_steps(options, total_steps)
    if step <= warmup_steps:
        return _rise(step, warmup_steps)
    height = (1.0 + math.cos(math.pi * _progress(step, warmup_steps, total_steps))) / 2
    return options.final_share + (1.0 - options.final_share) * height


def warmup_plateau_anneal(step: int, total_steps: int, options: PlateauOptions) -> float:
    """Rise to the full rate, stay, then multiply by `rate` after each milestone."""
    return _rise(step, options.warmup_steps) * _annealed(step, options.milestones, options.rate)


def noam(step: int, total_steps: int, options: NoamOptions) -> float:
    """Rise, then fall with the inverse square root (Vaswani et al. 2017, equation 3)."""
    warmup_steps = options.warmup_steps
    factor = min(step**-0.5, step * warmup_steps**-1.5)
    factor *= warmup_steps**0.5 if options.convention == "peak" else options.width**-0.5
    return factor * _annealed(step, options.milestones, options.rate)


def lr_curve(
    schedule: Schedule, options: Any, lr: float, total_steps: int, points: int = 200
) -> list[tuple[int, float]]:
    """Return (step, learning rate) pairs for drawing, evenly spread; corners are always in."""
    last = max(1, total_steps)
    count = max(2, points)
    steps = {1 + round(index * (last - 1) / (count - 1)) for index in range(count)}
    for milestone in _milestones_of(options):
        steps |= {milestone, milestone + 1}
    steps.add(find_warmup_steps(options, last))
    inside = sorted(step for step in steps if 1 <= step <= last)
    return [(step, lr * schedule.factor(step, last, options)) for step in inside]


def warnings_for(schedule: Schedule, options: Any, total_steps: int) -> list[str]:
    """Return a sentence for each choice that will not do what a person probably wants."""
    warnings = []
    warmup_steps = find_warmup_steps(options, total_steps)
    if warmup_steps >= total_steps:
        peak = schedule.factor(total_steps, total_steps, options)
        warnings.append(
            f"{schedule.label}: the warm-up takes {warmup_steps} steps, but the run has "
            f"{total_steps}, so the factor on the rate ends at {peak:.3g}. Use a shorter warm-up."
        )
    late = [milestone for milestone in _milestones_of(options) if milestone >= total_steps]
    if late:
        warnings.append(
            f"{schedule.label}: the run ends at step {total_steps}, before the milestones "
            f"{', '.join(map(str, late))}. Lower them, or train longer."
        )
    if isinstance(options, NoamOptions) and options.convention == "paper":
        peak = (options.width * options.warmup_steps) ** -0.5
        warnings.append(
            f"{schedule.label}: in the paper's convention the learning rate is multiplied by at "
            f"most {peak:.2g}. Set it to 1, or choose the convention 'peak'."
        )
    return warnings


def find_warmup_steps(options: Any, total_steps: int) -> int:
    """Return the steps of warm-up: as chosen, else 5 % of the run and at most 1000."""
    if options.warmup_steps is not None:
        return options.warmup_steps
    return min(_LONGEST_AUTO_WARMUP, round(_WARMUP_SHARE * total_steps))


@cache
def parse_milestones(text: str) -> tuple[int, ...]:
    """Read steps separated by commas, in any order.

    Raises:
        ConfigError: something between the commas is not a positive whole number.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(
            FieldProblem(
                f"The milestones are '{text}'; expected steps separated by commas, for example "
                "200000,400000,600000.",
                "milestones",
            )
        )
    return tuple(sorted(int(part) for part in parts))


def _rise(step: int, warmup_steps: int) -> float:
    return min(1.0, step / warmup_steps) if warmup_steps > 0 else 1.0


def _progress(step: int, warmup_steps: int, total_steps: int) -> float:
    """Return how far a step is between the end of the warm-up (0) and the last step (1)."""
    return min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))


def _annealed(step: int, milestones: str, rate: float) -> float:
    return rate ** sum(step > milestone for milestone in parse_milestones(milestones))


def _milestones_of(options: Any) -> tuple[int, ...]:
    return parse_milestones(getattr(options, "milestones", ""))


_SCHEDULES = (
    Schedule(
        "constant",
        "Constant",
        "One rate to the end; right for Prodigy and Schedule-Free.",
        ConstantOptions,
        constant,
    ),
    Schedule(
        "linear",
        "Linear",
        "Warm-up, then an even fall to the last step.",
        LinearOptions,
        linear,
    ),
    Schedule(
        "cosine",
        "Cosine",
        "Warm-up, then a smooth fall to the last step; the usual choice.",
        CosineOptions,
        cosine,
    ),
    Schedule(
        "warmup_plateau_anneal",
        "Warm-up, plateau, anneal",
        "Warm-up, a long plateau, then a cut at each milestone; for long runs.",
        PlateauOptions,
        warmup_plateau_anneal,
    ),
    Schedule(
        "noam",
        "Noam",
        "Warm-up, then a fall with the inverse square root of the step.",
        NoamOptions,
        noam,
    ),
)

SCHEDULES: dict[str, Schedule] = {schedule.name: schedule for schedule in _SCHEDULES}

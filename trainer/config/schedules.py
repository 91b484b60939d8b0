"""Learning-rate schedules: pure functions from a step to a factor, and their registry."""

import math
from dataclasses import dataclass
from functools import cache

from trainer.core.errors import ConfigError, FieldProblem
from trainer.core.options import Options, option
from trainer.core.specs import Schedule

# Chosen by hand: 5 % suits short runs, and the cap keeps long ones from wasting steps. The
# IndexTTS-2 community trainer warms up for 1,000 steps too.
_WARMUP_SHARE = 0.05
_LONGEST_AUTO_WARMUP = 1000
_WARMUP_HELP = "Steps until the full rate. Empty: 5 % of the run, at most 1000."


@dataclass(frozen=True)
class ConstantOptions:
    """The options of the constant schedule."""

    # No warm-up by default: Prodigy finds its own rate, and Schedule-Free warms up by itself.
    warmup_steps: int = option(0, "Warm-up (steps)", "Steps until the full rate; 0: none.", min=0)


@dataclass(frozen=True)
class LinearOptions:
    """The options of the linear schedule."""

    warmup_steps: int | None = option(None, "Warm-up (steps)", _WARMUP_HELP, min=0)
    final_share: float = option(
        0.0, "Final share", "Share of the full rate at the last step.", min=0.0, max=1.0
    )


@dataclass(frozen=True)
class CosineOptions:
    """The options of the cosine schedule."""

    warmup_steps: int | None = option(None, "Warm-up (steps)", _WARMUP_HELP, min=0)
    # Above zero (chosen by hand), so that the last steps still learn something.
    final_share: float = option(
        0.05, "Final share", "Share of the full rate at the last step.", min=0.0, max=1.0
    )


@dataclass(frozen=True)
class PlateauOptions:
    """The options of warm-up, plateau, anneal."""

    # The warm-up and the milestones are those of the FastSpeech 2 optimizer study; see the presets.
    warmup_steps: int = option(8000, "Warm-up (steps)", "Steps until the full rate.", min=0)
    milestones: str = option(
        "200000,400000,600000",
        "Milestones (steps)",
        "The learning rate is multiplied by the anneal rate after each of these steps.",
    )
    rate: float = option(
        0.5, "Anneal rate", "Factor on the learning rate at each milestone.", min=0.0, max=1.0
    )

    def __post_init__(self) -> None:
        # Parsed only to refuse a bad text now, and not at the first step.
        parse_milestones(self.milestones)


@dataclass(frozen=True)
class NoamOptions:
    """The options of the Noam schedule."""

    # As published: Vaswani et al. 2017, section 5.3.
    warmup_steps: int = option(4000, "Warm-up (steps)", "Steps until the peak.", min=1)
    convention: str = option(
        "peak",
        "Convention",
        "peak: the learning rate is the peak, reached at the end of the warm-up. paper: the "
        "learning rate is multiplied by width^-0.5 * min(step^-0.5, step * warm-up^-1.5), so set "
        "it to 1. Do not enter width^-0.5 (0.0625 for width 256) as the learning rate: with a "
        "warm-up of 4000 steps the peak is 0.0625 / sqrt(4000) = 9.9e-4.",
        choices=("peak", "paper"),
    )
    width: int = option(
        256, "Model width", "Used only by the paper's convention.", min=1, advanced=True
    )
    milestones: str = option(
        "",
        "Milestones (steps)",
        "The learning rate is multiplied by the anneal rate after each of these steps. Empty: "
        "none. The published FastSpeech 2 uses 300000,400000,500000 with 0.3.",
        advanced=True,
    )
    rate: float = option(
        0.3,
        "Anneal rate",
        "Factor on the learning rate at each milestone.",
        min=0.0,
        max=1.0,
        advanced=True,
    )

    def __post_init__(self) -> None:
        parse_milestones(self.milestones)


def constant(step: int, total_steps: int, options: ConstantOptions) -> float:
    """Rise to the full rate, then stay constant."""
    return _rise(step, options.warmup_steps)


def linear(step: int, total_steps: int, options: LinearOptions) -> float:
    """Rise to the full rate, then fall linearly to the final share at the last step."""
    warmup_steps = find_warmup_steps(options, total_steps)
    if step <= warmup_steps:
        return _rise(step, warmup_steps)
    fallen = _progress(step, warmup_steps, total_steps)
    return 1.0 - (1.0 - options.final_share) * fallen


def cosine(step: int, total_steps: int, options: CosineOptions) -> float:
    """Rise to the full rate, then fall along half a cosine (Loshchilov & Hutter 2017, eq. 5)."""
    warmup_steps = find_warmup_steps(options, total_steps)
    # The peak belongs to the warm-up, so that the curve has no jump where the parts meet.
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
    # The minimum peaks at warmup_steps^-0.5; multiplying by warmup_steps^0.5 makes that peak 1.
    factor = min(step**-0.5, step * warmup_steps**-1.5)
    factor *= warmup_steps**0.5 if options.convention == "peak" else options.width**-0.5
    return factor * _annealed(step, options.milestones, options.rate)


def lr_curve(
    schedule: Schedule, options: Options, lr: float, total_steps: int, points: int = 200
) -> list[tuple[int, float]]:
    """Return (step, learning rate) pairs for drawing, evenly spaced plus every corner."""
    last = max(1, total_steps)
    count = max(2, points)
    steps = {1 + round(index * (last - 1) / (count - 1)) for index in range(count)}
    # Points on both sides of a milestone draw the cut as a vertical line.
    for milestone in _milestones_of(options):
        steps |= {milestone, milestone + 1}
    # Even spacing would miss the peak, which is a single step.
    steps.add(find_warmup_steps(options, last))
    inside = sorted(step for step in steps if 1 <= step <= last)
    return [(step, lr * schedule.factor(step, last, options)) for step in inside]


def warnings_for(schedule: Schedule, options: Options, total_steps: int) -> list[str]:
    """Return a warning for each choice that probably won't do what was intended."""
    warnings = []
    warmup_steps = find_warmup_steps(options, total_steps)
    # Legal, since a run may be extended later, but rarely what was meant.
    if warmup_steps >= total_steps:
        peak = schedule.factor(total_steps, total_steps, options)
        warnings.append(
            f"{schedule.label}: the warm-up takes {warmup_steps} steps, but the run has only "
            f"{total_steps}, so the rate ends at {peak:.3g} of its peak. Use a shorter warm-up."
        )
    late = [milestone for milestone in _milestones_of(options) if milestone >= total_steps]
    if late:
        warnings.append(
            f"{schedule.label}: the run ends at step {total_steps}, before the milestones "
            f"{', '.join(map(str, late))}. Lower them or train longer."
        )
    if isinstance(options, NoamOptions) and options.convention == "paper":
        peak = (options.width * options.warmup_steps) ** -0.5
        warnings.append(
            f"{schedule.label}: in the paper's convention the learning rate is multiplied by at "
            f"most {peak:.2g}. Set it to 1 or choose the convention 'peak'."
        )
    return warnings


def find_warmup_steps(options: Options, total_steps: int) -> int:
    """Return the warm-up steps: as chosen, or 5 % of the run and at most 1000."""
    if options.warmup_steps is not None:
        return options.warmup_steps
    return min(_LONGEST_AUTO_WARMUP, round(_WARMUP_SHARE * total_steps))


@cache  # the loop asks for the factor at every step
def parse_milestones(text: str) -> tuple[int, ...]:
    """Parse steps separated by commas, in any order.

    Raises:
        ConfigError: a part is not a positive integer.
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
    # Steps count from 1, so the first one already moves the weights.
    return min(1.0, step / warmup_steps) if warmup_steps > 0 else 1.0


def _progress(step: int, warmup_steps: int, total_steps: int) -> float:
    """Return how far a step is between the end of the warm-up (0) and the last step (1)."""
    # At most 1, so that steps past the planned end keep the final rate instead of rising again.
    return min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))


def _annealed(step: int, milestones: str, rate: float) -> float:
    # The step of a milestone itself still has the old rate.
    return rate ** sum(step > milestone for milestone in parse_milestones(milestones))


def _milestones_of(options: Options) -> tuple[int, ...]:
    return parse_milestones(getattr(options, "milestones", ""))


_SCHEDULES = (
    Schedule(
        "constant",
        "Constant",
        "The same rate to the end; right for Prodigy and Schedule-Free.",
        ConstantOptions,
        constant,
    ),
    Schedule(
        "linear",
        "Linear",
        "Warm-up, then a linear decay to the last step.",
        LinearOptions,
        linear,
    ),
    Schedule(
        "cosine",
        "Cosine",
        "Warm-up, then a smooth decay to the last step; the usual choice.",
        CosineOptions,
        cosine,
    ),
    Schedule(
        "warmup_plateau_anneal",
        "Warm-up, plateau, anneal",
        "Warm-up, a long plateau, then a lower rate after each milestone; for long runs.",
        PlateauOptions,
        warmup_plateau_anneal,
    ),
    Schedule(
        "noam",
        "Noam",
        "Warm-up, then a decay with the inverse square root of the step.",
        NoamOptions,
        noam,
    ),
)

SCHEDULES: dict[str, Schedule] = {schedule.name: schedule for schedule in _SCHEDULES}

"""Verdict: differences between paired seeds, their interval, and what they mean in words."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, stdev

_DOUBT = 0.05
_NEGLIGIBLE = 0.005
"""A difference below this share of the baseline's loss is no difference to a person."""

Scores = Mapping[int, float]
"""Final validation loss by seed; NaN where the run diverged."""

Found = tuple[float | None, float | None, float | None]
"""Mean difference, and where its interval begins and ends."""


@dataclass(frozen=True)
class Comparison:
    """One entrant against the baseline, by one clock (`steps` or `seconds`).

    outcome: `better`, `worse`, `no difference`, `diverged` or `unknown`. `difference` is the mean
    over seeds of its loss minus the baseline's; `low` and `high` bound it; None where it has none.
    """

    rival: str
    baseline: str
    clock: str
    outcome: str
    difference: float | None
    low: float | None
    high: float | None
    text: str


def compare(
    rival: str, baseline: str, clock: str, scores: Scores, usual: Scores, *, num_rivals: int = 1
) -> Comparison:
    """Compare final losses seed by seed.

    The interval is Student's t of the paired differences at 95 %, shared among all rivals
    (Bonferroni), so that with many entrants none wins by being one of many.
    """
    lost, base_lost = _lost(scores), _lost(usual)
    seeds = sorted((set(scores) & set(usual)) - lost - base_lost)
    who = f"{rival} against {baseline} at equal {clock}"
    found: Found = (None, None, None)
    if len(seeds) >= 2:
        differences = [scores[seed] - usual[seed] for seed in seeds]
        found = _interval(differences, 1 - _DOUBT / num_rivals)
    if lost or base_lost:
        outcome = _outcome_of_lost(len(lost), len(base_lost))
        text = f"{who}: {rival} diverged with {len(lost)} of {len(scores)} seeds, {baseline} with "
        text += f"{len(base_lost)} of {len(usual)}."
    elif found[0] is None:
        outcome, text = "unknown", f"{who}: there are too few finished runs to compare."
    else:
        level = mean(usual[seed] for seed in seeds)
        outcome = _outcome(found, level)
        text = f"{who}: {_in_words(outcome, found)}; {_numbers(found, level, len(seeds))}."
    return Comparison(rival, baseline, clock, outcome, *found, text)


def noise_between_seeds(usual: Scores) -> float | None:
    """Return the standard deviation of the final loss between seeds."""
    finite = [score for score in usual.values() if math.isfinite(score)]
    return stdev(finite) if len(finite) >= 2 else None


def headline(comparisons: list[Comparison], clock: str) -> str:
    """Say in one sentence who is better at a clock."""
    mine = [comparison for comparison in comparisons if comparison.clock == clock]
    baseline = mine[0].baseline
    if all(comparison.outcome == "no difference" for comparison in mine):
        return f"At equal {clock} there is no difference at this budget."
    said = (
        (("better",), "better than"),
        (("worse", "diverged"), "worse than"),
        (("no difference",), "not to be told at this budget from"),
        (("unknown",), "not to be compared with"),
    )
    parts = []
    for outcomes, words in said:
        names = [comparison.rival for comparison in mine if comparison.outcome in outcomes]
        if names:
            verb = "is" if len(names) == 1 else "are"
            parts.append(f"{_listed(names)} {verb} {words} {baseline}")
    return f"At equal {clock} {'; '.join(parts)}."


def caution(num_seeds: int, num_rivals: int) -> str:
    """Say how much a race with so few repetitions can show."""
    if num_seeds == 2:
        return (
            "Two seeds are the fewest possible: the interval rests on one repetition and is about "
            f"{_quantile(1 - _DOUBT / num_rivals, 1) / math.sqrt(2):.0f} times as wide as the "
            "differences scatter, so only large differences show. Race again with five seeds "
            "before you believe a tie."
        )
    return (
        f"{num_seeds} seeds on one corpus: a verdict holds for these clips, this model and this "
        "length of training, not for others."
    )


def _lost(scores: Scores) -> set[int]:
    return {seed for seed, score in scores.items() if not math.isfinite(score)}


def _interval(differences: list[float], confidence: float) -> tuple[float, float, float]:
    middle = mean(differences)
    error = stdev(differences) / math.sqrt(len(differences))
    half = _quantile(confidence, len(differences) - 1) * error
    return middle, middle - half, middle + half


def _quantile(confidence: float, freedom: int) -> float:
    """Return how many standard errors a two-sided interval reaches (Student's t)."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _outcome(found: Found, level: float) -> str:
    middle, low, high = found
    assert middle is not None and low is not None and high is not None
    if low <= 0 <= high or abs(middle) < _NEGLIGIBLE * abs(level):
        return "no difference"
    return "better" if middle < 0 else "worse"


def _outcome_of_lost(num_lost: int, num_base_lost: int) -> str:
    if num_lost == num_base_lost:
        return "unknown"
    return "diverged" if num_lost > num_base_lost else "better"


def _in_words(outcome: str, found: Found) -> str:
    middle, low, high = found
    if outcome != "no difference":
        return outcome
    is_certain = low is not None and high is not None and not low <= 0 <= high
    return "a difference too small to matter" if is_certain else "no difference at this budget"


def _numbers(found: Found, level: float, num_seeds: int) -> str:
    middle, low, high = found
    if middle == low == high == 0:
        return f"the losses of all {num_seeds} seeds are the same to the last digit"
    shown = [
        f"{100 * value / abs(level):+.2f} %" for value in (middle, low, high) if value is not None
    ]
    return f"loss {shown[0]} (interval {shown[1]} to {shown[2]}, {num_seeds} seeds)"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

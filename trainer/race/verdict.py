"""Compare contenders by differences between paired seeds, and put the verdict into words."""

import math
from dataclasses import dataclass
from statistics import mean, stdev

from trainer.race.seed_variance import MIN_CONTENDERS, Scores, SeedVariance

_DOUBT = 0.05  # the conventional 5 % error rate, shared by all comparisons of a race
_NEGLIGIBLE = 0.005
"""A difference below this share of the baseline's loss has no practical value; chosen by hand."""

_CLEAR = 3.0
"""The difference that a race should detect, in standard deviations of a run; chosen by hand."""
_MOST_SEEDS = 12  # never advise more; chosen by hand

Found = tuple[float | None, float | None, float | None]
"""Mean difference, and the lower and upper end of its interval."""


@dataclass(frozen=True)
class Comparison:
    """One contender against the baseline, at equal `steps` or `seconds` (the clock).

    outcome: `better`, `worse`, `no difference`, `diverged` or `unknown`. `difference` is the mean
    over seeds of its loss minus the baseline's, in the interval from `low` to `high`; all three are
    None without enough finished runs.
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
    rival: str,
    baseline: str,
    clock: str,
    scores: Scores,
    usual: Scores,
    *,
    num_rivals: int = 1,
    seed_variance: SeedVariance | None = None,
) -> Comparison:
    """Compare final losses seed by seed.

    The interval is Student's t of the paired differences at 95 %, with a Bonferroni correction for
    the number of rivals, so that with many contenders none wins by chance. The standard error comes
    from `scatter`, pooled over all contenders, or without it from the differences themselves.
    """
    lost, base_lost = _lost(scores), _lost(usual)
    # Pairs need a finished run on both sides: a seed is easy or hard for both alike.
    seeds = sorted((set(scores) & set(usual)) - lost - base_lost)
    who = f"{rival} against {baseline} at equal {clock}"
    found: Found = (None, None, None)
    # One difference has no spread, so it has no interval either.
    if len(seeds) >= 2:
        differences = [scores[seed] - usual[seed] for seed in seeds]
        error = None
        # Contenders that did not finish every seed have no pooled variance.
        if seed_variance is not None and {rival, baseline} <= set(seed_variance.variances):
            error = seed_variance.error_of(rival, baseline, len(seeds)), seed_variance.freedom
        found = _interval(differences, 1 - _DOUBT / num_rivals, error)
    # Divergence decides before the losses do: the mean of the surviving seeds would favor the
    # contender that lost the hard ones.
    if lost or base_lost:
        outcome = _outcome_of_lost(len(lost), len(base_lost))
        text = f"{who}: {rival} diverged with {len(lost)} of {len(scores)} seeds, {baseline} with "
        text += f"{len(base_lost)} of {len(usual)}."
    elif found[0] is None:
        outcome, text = "unknown", f"{who}: too few finished runs to compare."
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
    """Return a sentence that says which contenders are better or worse at a clock."""
    mine = [comparison for comparison in comparisons if comparison.clock == clock]
    baseline = mine[0].baseline
    if all(comparison.outcome == "no difference" for comparison in mine):
        return f"At equal {clock} there is no difference at this budget."
    said = (
        (("better",), "better than"),
        (("worse", "diverged"), "worse than"),
        (("no difference",), "not distinguishable at this budget from"),
        (("unknown",), "not comparable with"),
    )
    parts = []
    for outcomes, words in said:
        names = [comparison.rival for comparison in mine if comparison.outcome in outcomes]
        if names:
            verb = "is" if len(names) == 1 else "are"
            parts.append(f"{_listed(names)} {verb} {words} {baseline}")
    return f"At equal {clock} {'; '.join(parts)}."


def min_detectable_difference(num_seeds: int, num_contenders: int) -> float:
    """Return the smallest difference that a race can detect, in units of a run's scatter.

    Scatter is the standard deviation of a contender's loss from seed to seed, without the effect
    that a seed has on all contenders alike. It is assumed to be the same for all.
    """
    freedom = num_seeds - 1
    if num_contenders >= MIN_CONTENDERS:
        # Pooling multiplies the degrees of freedom, as in `estimate_seed_variance`.
        freedom *= num_contenders - 1
    confidence = 1 - _DOUBT / (num_contenders - 1)
    # A difference of two means has twice the variance of one.
    return _quantile(confidence, freedom) * math.sqrt(2 / num_seeds)


def advise_seeds(num_contenders: int) -> int:
    """Return the fewest seeds that can detect a difference of `_CLEAR` times the scatter."""
    # At least two, because a single seed has no variance.
    counts = range(2, _MOST_SEEDS)
    enough = (
        count for count in counts if min_detectable_difference(count, num_contenders) <= _CLEAR
    )
    return next(enough, _MOST_SEEDS)


def describe_power(num_seeds: int, num_contenders: int) -> str:
    """Return a sentence, before a race, that says what it can detect."""
    told = min_detectable_difference(num_seeds, num_contenders)
    text = (
        f"With {num_seeds} seeds and {num_contenders} optimizers, a difference can be "
        "distinguished "
        f"from chance if it is {told:.1f} times the variation of a run's loss from seed to seed."
    )
    advised = advise_seeds(num_contenders)
    if advised > num_seeds:
        told = min_detectable_difference(advised, num_contenders)
        text += f" With {advised} seeds, {told:.1f} times is enough."
    return text


def describe_limits(num_seeds: int, num_contenders: int) -> str:
    """Return a sentence on how far a verdict applies, and how to make it more precise."""
    advised = advise_seeds(num_contenders)
    more = f" Race again with {advised} before you believe a tie." if advised > num_seeds else ""
    return (
        f"{num_seeds} seeds on one dataset: the verdict applies to these clips, this model and "
        f"this length of training, not to others.{more}"
    )


def _lost(scores: Scores) -> set[int]:
    return {seed for seed, score in scores.items() if not math.isfinite(score)}


def _interval(
    differences: list[float], confidence: float, learnt: tuple[float, float] | None
) -> tuple[float, float, float]:
    """Return the mean difference and its bounds; `learnt` is (standard error, freedom) or None."""
    middle = mean(differences)
    own = stdev(differences) / math.sqrt(len(differences))
    # Identical contenders have no difference, however much the others vary.
    is_twin = not any(differences)
    error, freedom = (own, len(differences) - 1) if learnt is None or is_twin else learnt
    half = _quantile(confidence, freedom) * error
    return middle, middle - half, middle + half


def _quantile(confidence: float, freedom: float) -> float:
    """Return the half width of a two-sided Student's t interval, in standard errors."""
    # Imported here: the page uses this module too, and only a finished race needs scipy.
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

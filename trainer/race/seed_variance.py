"""Estimate how much a contender's loss varies from seed to seed, by pooling all contenders.

Two or three seeds say almost nothing about the variance of one contender, but a race has many. The
effect that a seed has on all contenders alike is removed. The remaining variances are shrunk
towards their common value, the more the closer they are to each other (Smyth 2004,
doi:10.2202/1544-6115.1027, sections 4 to 6). The method assumes that variances follow one common
distribution, so a contender whose own runs vary more keeps its own variance.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, median, variance

import numpy as np

Scores = Mapping[int, float]
"""Final validation loss by seed; NaN where the run diverged."""

MIN_CONTENDERS = 3
"""With fewer contenders there is nothing to pool."""
_SMALLEST = 1e-5
"""Variances are at least this share of the median before taking logarithms, because identical
contenders may have a variance of zero. limma, the author's code, uses the same floor."""


@dataclass(frozen=True)
class SeedVariance:
    """The variance of a single run of every contender, and its degrees of freedom."""

    variances: Mapping[str, float]
    freedom: float

    def error_of(self, first: str, second: str, num_seeds: int) -> float:
        """Return the standard error of the difference between two contenders' means."""
        return math.sqrt((self.variances[first] + self.variances[second]) / num_seeds)


def estimate_seed_variance(scores: Mapping[str, Scores]) -> SeedVariance | None:
    """Return the scatter of all contenders that finished with every seed; None if too few did."""
    seeds = sorted({seed for losses in scores.values() for seed in losses})
    complete = {
        name: [losses[seed] for seed in seeds]
        for name, losses in scores.items()
        if all(math.isfinite(losses.get(seed, math.nan)) for seed in seeds)
    }
    if len(complete) < MIN_CONTENDERS or len(seeds) < 2:
        return None
    own = _own_variances(np.array(list(complete.values())))
    usual, weight = _usual_variance(own, len(seeds) - 1)
    freedom = len(seeds) - 1
    # No estimate can rest on more degrees of freedom than all residuals together have.
    most = freedom * (len(own) - 1)
    if math.isinf(weight):
        drawn, found = [usual] * len(own), float(most)
    else:
        drawn = [(weight * usual + freedom * value) / (weight + freedom) for value in own]
        found = min(weight + freedom, float(most))
    # Never below a contender's own variance, which protects against understated intervals.
    kept = [max(both) for both in zip(drawn, own, strict=True)]
    return SeedVariance(dict(zip(complete, kept, strict=True)), found)


def _own_variances(losses: np.ndarray) -> list[float]:
    """Return the variance of each contender without the seeds' common effect.

    losses: (contenders, seeds).
    """
    rest = losses - losses.mean(1, keepdims=True)
    rest = rest - rest.mean(0, keepdims=True)
    num_contenders, num_seeds = losses.shape
    # Degrees of freedom: removing the seeds' means takes an equal share from every contender.
    share = (num_contenders - 1) / num_contenders * (num_seeds - 1)
    return [float(value) for value in (rest**2).sum(1) / share]


def _usual_variance(own: list[float], freedom: int) -> tuple[float, float]:
    """Return the common variance and its degrees of freedom, which may be infinite.

    Smyth 2004, section 6.2: moments of the log variances of a scaled F distribution.
    """
    from scipy.special import digamma, polygamma

    floor = _SMALLEST * median(own)
    if floor <= 0:
        return mean(own), math.inf
    logs = [math.log(max(value, floor)) for value in own]
    logs = [value - float(digamma(freedom / 2)) + math.log(freedom / 2) for value in logs]
    excess = variance(logs) - float(polygamma(1, freedom / 2))
    if excess <= 0:
        return mean(own), math.inf
    weight = 2 * _inverse_trigamma(excess)
    usual = math.exp(mean(logs) + float(digamma(weight / 2)) - math.log(weight / 2))
    return usual, weight


def _inverse_trigamma(value: float) -> float:
    """Solve trigamma(x) = value by Newton's method (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    # The start and the stopping rule are those of the paper; it converges in a few iterations.
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        change = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += change
        if -change / x < 1e-8:
            break
    return x

"""Scatter: what runs of one entrant differ by from seed to seed, learnt from all entrants together.

Two or three seeds tell next to nothing of one entrant's scatter, but a race has many entrants.
What a seed does to all of them alike is taken off; the rest of each is drawn towards what is usual
among them, the more the less they differ in it (Smyth 2004, doi:10.2202/1544-6115.1027, sections 4
to 6). This assumes that scatters vary no more wildly than chance and that common spread explain; so
an entrant whose own runs lie farther apart keeps its own number.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, median, variance

import numpy as np

Scores = Mapping[int, float]
"""Final validation loss by seed; NaN where the run diverged."""

FEWEST_ENTRANTS = 3
"""With fewer there is nothing to learn from others."""
_SMALLEST = 1e-5
"""Of the median: twins may have no scatter at all, and the logarithm of nothing is infinite."""


@dataclass(frozen=True)
class Scatter:
    """The variance of a single run of every entrant, and the degrees of freedom it rests on."""

    variances: Mapping[str, float]
    freedom: float

    def error_of(self, first: str, second: str, num_seeds: int) -> float:
        """Return the standard error of the difference between two entrants' means."""
        return math.sqrt((self.variances[first] + self.variances[second]) / num_seeds)


def learn_scatter(scores: Mapping[str, Scores]) -> Scatter | None:
    """Return the scatter of all entrants that finished with every seed; None: they are too few."""
    seeds = sorted({seed for losses in scores.values() for seed in losses})
    complete = {
        name: [losses[seed] for seed in seeds]
        for name, losses in scores.items()
        if all(math.isfinite(losses.get(seed, math.nan)) for seed in seeds)
    }
    if len(complete) < FEWEST_ENTRANTS or len(seeds) < 2:
        return None
    own = _own_variances(np.array(list(complete.values())))
    usual, weight = _usual_variance(own, len(seeds) - 1)
    freedom = len(seeds) - 1
    most = freedom * (len(own) - 1)
    if math.isinf(weight):
        drawn, found = [usual] * len(own), float(most)
    else:
        drawn = [(weight * usual + freedom * value) / (weight + freedom) for value in own]
        found = min(weight + freedom, float(most))
    kept = [max(both) for both in zip(drawn, own, strict=True)]
    return Scatter(dict(zip(complete, kept, strict=True)), found)


def _own_variances(losses: np.ndarray) -> list[float]:
    """Return what each entrant scatters by; `losses` (entrants, seeds)."""
    rest = losses - losses.mean(1, keepdims=True)
    rest = rest - rest.mean(0, keepdims=True)
    num_entrants, num_seeds = losses.shape
    # The seeds' own effect takes its share of every entrant's.
    share = (num_entrants - 1) / num_entrants * (num_seeds - 1)
    return [float(value) for value in (rest**2).sum(1) / share]


def _usual_variance(own: list[float], freedom: int) -> tuple[float, float]:
    """Return the usual variance and how many degrees of freedom it is worth; may be infinite."""
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

    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        change = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += change
        if -change / x < 1e-8:
            break
    return x

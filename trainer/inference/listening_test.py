"""Store the votes of a blind listening test and rank the contenders.

The ranking follows Bradley and Terry 1952, "Rank Analysis of Incomplete Block Designs": each name
has a positive strength p, and one beats another with probability p1 / (p1 + p2). Intervals come
from a bootstrap over the votes.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from trainer.core.atomic_io import append_line

FIRST, SECOND, SAME = "first", "second", "same"
WINNERS = (FIRST, SECOND, SAME)
_RESAMPLES = 200  # enough for 5 % and 95 % percentiles, and fast enough for the page
_ROUNDS = 60  # iterations of the fixed point; chosen by hand, generous for a handful of names
_PRIOR = 0.5
"""Half a win and half a loss against an average name for everyone.

A weak prior (chosen by hand): without it, a name that won every vote would have infinite strength.
"""


@dataclass(frozen=True)
class Vote:
    """One answer: two names in the order they were heard, and which was better (or `same`)."""

    first: str
    second: str
    winner: str
    text: str = ""
    time: float = 0.0


@dataclass(frozen=True)
class Standing:
    """A name's rank: its chance (0..1) to beat an average name, with a 90 % interval.

    leads: the share of bootstrap samples in which no other name was stronger.
    """

    name: str
    score: float
    low: float
    high: float
    leads: float
    wins: int
    losses: int
    draws: int


def append_vote(path: Path, vote: Vote) -> None:
    """Append a vote to a file with one JSON object per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    append_line(path, json.dumps(asdict(vote), ensure_ascii=False))


def read_votes(path: Path) -> list[Vote]:
    """Read the votes of a file, skipping damaged lines; a missing file has no votes."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    found = []
    for line in text.split("\n"):  # not splitlines(): a text may contain U+2028
        try:
            vote = Vote(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if vote.winner in WINNERS and vote.first != vote.second:
            found.append(vote)
    return found


def rank(votes: Sequence[Vote], *, seed: int = 0) -> list[Standing]:
    """Rank the names by their votes, strongest first; a draw is half a win for both."""
    names = sorted({name for vote in votes for name in (vote.first, vote.second)})
    if not names:
        return []
    pairs = np.array([[names.index(vote.first), names.index(vote.second)] for vote in votes])
    shares = np.array([{FIRST: 1.0, SECOND: 0.0, SAME: 0.5}[vote.winner] for vote in votes])
    scores = _scores(pairs, shares, len(names))
    rng = np.random.default_rng(seed)
    drawn = [
        _scores(pairs[chosen], shares[chosen], len(names))
        for chosen in rng.integers(0, len(votes), (_RESAMPLES, len(votes)))
    ]
    samples = np.array(drawn)  # (resamples, names)
    low, high = np.percentile(samples, [5, 95], axis=0)
    # Names that are equal but for rounding share the lead.
    is_top = samples >= samples.max(axis=1, keepdims=True) - 1e-12
    leads = (is_top / is_top.sum(axis=1, keepdims=True)).mean(axis=0)
    standings = [
        Standing(
            name,
            float(scores[number]),
            float(min(low[number], scores[number])),
            float(max(high[number], scores[number])),
            float(leads[number]),
            *_count(votes, name),
        )
        for number, name in enumerate(names)
    ]
    return sorted(standings, key=lambda standing: -standing.score)


def _scores(pairs: np.ndarray, shares: np.ndarray, count: int) -> np.ndarray:
    """Return each name's chance against an average one.

    Args:
        pairs: (votes, 2) indices of the names; shares: (votes,) the first one's share of the win.

    Returns:
        Probabilities (count,) in 0..1.
    """
    # Zermelo's fixed point: strength = wins / sum over the votes of 1 / (sum of both strengths).
    won, met = np.zeros(count), np.zeros((count, count))
    first, second = pairs[:, 0], pairs[:, 1]
    np.add.at(won, first, shares)
    np.add.at(won, second, 1 - shares)
    np.add.at(met, (first, second), 1.0)
    np.add.at(met, (second, first), 1.0)
    strengths = np.ones(count)
    for _ in range(_ROUNDS):
        expected = (met / (strengths[:, None] + strengths[None, :])).sum(axis=1)
        expected += 2 * _PRIOR / (strengths + 1)
        strengths = (won + _PRIOR) / expected
        # Only ratios matter; a geometric mean of 1 defines the average name.
        strengths /= np.exp(np.log(strengths).mean())
    return strengths / (strengths + 1)


def _count(votes: Sequence[Vote], name: str) -> tuple[int, int, int]:
    """Count the votes that a name won, lost and drew."""
    won = sum(
        (vote.winner == FIRST and vote.first == name)
        or (vote.winner == SECOND and vote.second == name)
        for vote in votes
    )
    mine = [vote for vote in votes if name in (vote.first, vote.second)]
    draws = sum(vote.winner == SAME for vote in mine)
    return won, len(mine) - won - draws, draws

"""Votes: the ranking that pairwise answers make, and how sure it is."""

import math
from pathlib import Path

import numpy as np
import pytest

from trainer.inference.listening_test import (
    FIRST,
    SAME,
    SECOND,
    Vote,
    append_vote,
    rank,
    read_votes,
)


def _simulate(strengths: dict[str, float], count: int) -> list[Vote]:
    """Return answers of a listener who follows the model exactly."""
    rng = np.random.default_rng(1)
    names = list(strengths)
    votes = []
    for _ in range(count):
        one, two = rng.choice(len(names), 2, replace=False)
        chance = 1 / (1 + math.exp(strengths[names[two]] - strengths[names[one]]))
        votes.append(Vote(names[one], names[two], FIRST if rng.random() < chance else SECOND))
    return votes


def test_the_order_of_a_faithful_listener_is_found() -> None:
    truth = {"base": -1.5, "60": -0.3, "300": 0.6, "recording": 1.2}

    standings = rank(_simulate(truth, 600))

    assert [standing.name for standing in standings] == ["recording", "300", "60", "base"]
    for standing in standings:
        expected = 1 / (1 + math.exp(-truth[standing.name]))
        assert standing.score == pytest.approx(expected, abs=0.07)
        assert standing.low <= standing.score <= standing.high
    assert standings[0].leads > 0.9


def test_few_votes_are_unsure_and_many_are_surer() -> None:
    truth = {"a": 0.5, "b": -0.5}

    few, many = (rank(_simulate(truth, count))[0] for count in (6, 300))

    assert few.high - few.low > 3 * (many.high - many.low)


def test_one_who_wins_always_has_no_infinite_strength() -> None:
    standings = rank([Vote("a", "b", FIRST), Vote("b", "a", SECOND)])

    assert [standing.name for standing in standings] == ["a", "b"]
    assert 0.5 < standings[0].score < 1
    assert standings[0].score + standings[1].score == pytest.approx(1)
    assert (standings[0].wins, standings[0].losses) == (2, 0)


def test_only_draws_leave_all_equal() -> None:
    standings = rank([Vote("a", "b", SAME), Vote("b", "c", SAME), Vote("c", "a", SAME)])

    assert [standing.score for standing in standings] == pytest.approx([0.5, 0.5, 0.5])
    assert [standing.leads for standing in standings] == pytest.approx([1 / 3] * 3)
    assert standings[0].draws == 2


def test_the_order_in_which_two_are_heard_does_not_matter() -> None:
    votes = [Vote("a", "b", FIRST), Vote("b", "c", SECOND), Vote("c", "a", SAME)]
    turned = [
        Vote(v.second, v.first, {FIRST: SECOND, SECOND: FIRST, SAME: SAME}[v.winner]) for v in votes
    ]

    assert [s.score for s in rank(votes)] == pytest.approx([s.score for s in rank(turned)])


def test_no_votes_make_no_ranking() -> None:
    assert rank([]) == []


def test_votes_are_kept_line_by_line_and_torn_ones_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "listening" / "votes.jsonl"
    votes = [Vote("a", "b", FIRST, "Hello.\u2028", 1.0), Vote("a", "b", SAME, "\uc548\ub155", 2.0)]

    for vote in votes:
        append_vote(path, vote)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"first": "a", "second": "a", "winner": "first"}\n{"winner": 3}\n{"first": "a"')

    assert read_votes(path) == votes
    append_vote(path, votes[0])
    assert read_votes(path) == [*votes, votes[0]]
    assert read_votes(tmp_path / "none.jsonl") == []

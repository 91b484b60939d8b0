"""What a race can tell: scatter learnt from all entrants, planted cases, words said before it."""

import random
from statistics import mean

import pytest

from trainer.race.choices import power_of
from trainer.race.seed_variance import estimate_seed_variance
from trainer.race.verdict import (
    advise_seeds,
    compare,
    describe_limits,
    describe_power,
    min_detectable_difference,
)

SEEDS = (1, 2, 3)


def _scores(draw: random.Random, *levels: float, scatter: float = 0.01) -> dict:
    """Return losses of entrants a, b, ... around their levels; seeds differ far more than runs."""
    seeds = {seed: draw.gauss(0.0, 0.1) for seed in SEEDS}
    return {
        chr(ord("a") + place): {
            seed: level + seeds[seed] + draw.gauss(0, scatter) for seed in SEEDS
        }
        for place, level in enumerate(levels)
    }


def _outcomes(scores: dict) -> dict[str, str]:
    scatter = estimate_seed_variance(scores)
    usual = scores["a"]
    rivals = [name for name in scores if name != "a"]
    return {
        name: compare(
            name, "a", "steps", scores[name], usual, num_rivals=len(rivals), seed_variance=scatter
        ).outcome
        for name in rivals
    }


def test_what_all_entrants_scatter_by_is_learnt_from_all_of_them() -> None:
    draw = random.Random(1)

    found = [estimate_seed_variance(_scores(draw, *[1.0] * 12)) for _ in range(20)]

    assert mean(scatter.variances["a"] for scatter in found if scatter) == pytest.approx(
        1e-4, rel=0.4
    )
    assert mean(scatter.freedom for scatter in found if scatter) > 10


def test_a_noisy_entrant_keeps_its_own_scatter() -> None:
    scores = _scores(random.Random(2), *[1.0] * 12)
    scores["c"] = {1: 0.5, 2: 1.5, 3: 0.9}

    scatter = estimate_seed_variance(scores)

    assert scatter is not None
    assert scatter.variances["c"] > 20 * scatter.variances["b"]


def test_two_entrants_teach_nothing_and_those_that_diverged_are_left_out() -> None:
    scores = _scores(random.Random(3), *[1.0] * 4)

    pair = estimate_seed_variance({name: scores[name] for name in ("a", "b")})
    rest = estimate_seed_variance(scores | {"d": scores["d"] | {2: float("nan")}})

    assert pair is None
    assert rest is not None
    assert set(rest.variances) == {"a", "b", "c"}


def test_planted_cases_among_many_rivals_are_told_with_three_seeds() -> None:
    scores = _scores(random.Random(4), *[1.0] * 14, 1.1, 0.9)
    scores["twin"] = dict(scores["a"])

    told = _outcomes(scores)

    assert (told["o"], told["p"], told["twin"]) == ("worse", "better", "no difference")
    assert {told[chr(ord("b") + place)] for place in range(13)} == {"no difference"}


def test_equal_optimizers_are_seldom_told_apart() -> None:
    draw = random.Random(5)
    races = [_outcomes(_scores(draw, *[1.0] * 6)) for _ in range(60)]

    wrong = sum(set(told.values()) != {"no difference"} for told in races)

    assert wrong <= 6


def test_rivals_sharpen_what_can_be_told_and_so_do_seeds() -> None:
    assert (
        min_detectable_difference(3, 17)
        < 3.0
        < min_detectable_difference(2, 17)
        < min_detectable_difference(2, 2)
    )
    assert [advise_seeds(count) for count in (2, 3, 17)] == [4, 3, 3]


def test_a_race_says_beforehand_what_it_will_be_able_to_tell() -> None:
    assert describe_power(3, 17).endswith(
        "if it is 2.6 times the variation of a run's loss from seed to seed."
    )
    assert describe_power(2, 3).endswith("With 3 seeds, 2.9 times is enough.")
    assert "Race again with 3 before" in describe_limits(2, 17)
    assert power_of(["adamw", "prodigy"], "1,2,3") == describe_power(3, 2)
    assert power_of(["adamw"], "1,2,3") == power_of(["adamw", "lion"], "one,2") == ""

"""Schedules: where each rises, stays, falls and ends, and what a person is warned of."""

import math
import subprocess
import sys
from typing import Any

import pytest

from trainer.config.schedules import (
    SCHEDULES,
    find_warmup_steps,
    lr_curve,
    parse_milestones,
    warnings_for,
)
from trainer.core.errors import ConfigError
from trainer.core.options import build_options, describe

LENGTHS = (1, 2, 3, 19, 300, 5000)
each_schedule = pytest.mark.parametrize("name", sorted(SCHEDULES))


def _options(name: str, **values: Any) -> Any:
    return build_options(SCHEDULES[name].options, values, name)


def _factors(name: str, total_steps: int, **values: Any) -> list[float]:
    """Return the factor of every step; index 0 is step 1."""
    options = _options(name, **values)
    factor = SCHEDULES[name].factor
    return [factor(step, total_steps, options) for step in range(1, total_steps + 1)]


def _is_rising(values: list[float]) -> bool:
    return all(after > before for before, after in zip(values, values[1:], strict=False))


def _is_falling(values: list[float]) -> bool:
    return all(after < before for before, after in zip(values, values[1:], strict=False))


@each_schedule
@pytest.mark.parametrize("total_steps", LENGTHS)
def test_a_factor_is_never_negative_nor_above_one(name: str, total_steps: int) -> None:
    factors = _factors(name, total_steps)

    assert len(factors) == total_steps
    assert all(0 <= factor <= 1 + 1e-12 for factor in factors)


@each_schedule
def test_the_warmup_rises_evenly_and_its_end_is_the_full_rate(name: str) -> None:
    factors = _factors(name, 1000, warmup_steps=40)

    assert _is_rising(factors[:40])
    assert factors[0] == pytest.approx(1 / 40)
    assert factors[19] == pytest.approx(0.5)
    assert factors[39] == pytest.approx(1.0)
    assert max(factors) == pytest.approx(1.0)


@each_schedule
def test_a_step_beyond_the_end_keeps_a_usable_factor(name: str) -> None:
    factor, options = SCHEDULES[name].factor, _options(name)

    assert 0 <= factor(150, 100, options) <= 1


@each_schedule
def test_the_same_step_always_has_the_same_factor(name: str) -> None:
    assert _factors(name, 300) == _factors(name, 300)


@each_schedule
def test_every_option_says_what_it_means(name: str) -> None:
    schedule = SCHEDULES[name]
    infos = describe(schedule.options)

    assert schedule.name == name
    assert infos
    assert all(info.label and info.help.endswith(".") for info in infos)


def test_constant_stays() -> None:
    assert set(_factors("constant", 50)) == {1.0}
    assert set(_factors("constant", 50, warmup_steps=5)[4:]) == {1.0}


def test_linear_falls_evenly_to_its_final_share() -> None:
    factors = _factors("linear", 110, warmup_steps=10, final_share=0.2)

    falls = [before - after for before, after in zip(factors[9:], factors[10:], strict=False)]

    assert falls == pytest.approx([0.008] * 100)
    assert factors[-1] == pytest.approx(0.2)


def test_cosine_falls_slowly_then_fast_then_slowly_to_its_final_share() -> None:
    factors = _factors("cosine", 110, warmup_steps=10, final_share=0.05)

    assert _is_falling(factors[9:])
    assert factors[59] == pytest.approx(0.05 + 0.95 / 2)
    assert factors[-1] == pytest.approx(0.05)
    assert factors[9] - factors[10] < factors[58] - factors[59] > factors[-2] - factors[-1]


@pytest.mark.parametrize(
    ("total_steps", "expected"), [(1, 0), (20, 1), (600, 30), (20_000, 1000), (900_000, 1000)]
)
def test_an_automatic_warmup_is_a_twentieth_of_the_run_and_capped(
    total_steps: int, expected: int
) -> None:
    assert find_warmup_steps(_options("cosine"), total_steps) == expected


def test_the_plateau_ends_exactly_after_its_milestones() -> None:
    factors = _factors(
        "warmup_plateau_anneal", 40, warmup_steps=4, milestones="10, 30,20", rate=0.5
    )

    assert set(factors[3:10]) == {1.0}
    assert set(factors[10:20]) == {0.5}
    assert set(factors[20:30]) == {0.25}
    assert set(factors[30:]) == {0.125}


def test_noam_peaks_at_the_rate_and_falls_with_the_square_root() -> None:
    factors = _factors("noam", 400, warmup_steps=100)

    assert factors[99] == pytest.approx(1.0)
    assert _is_falling(factors[99:])
    assert factors[399] == pytest.approx(0.5)


def test_noam_by_the_paper_peaks_near_a_thousandth_for_width_256() -> None:
    schedule, options = SCHEDULES["noam"], _options("noam", convention="paper")

    peak = schedule.factor(4000, 900_000, options)

    assert peak == pytest.approx(256**-0.5 / math.sqrt(4000))
    assert peak == pytest.approx(9.9e-4, rel=0.01)
    assert schedule.factor(1000, 900_000, options) == pytest.approx(256**-0.5 * 1000 * 4000**-1.5)


def test_noam_reproduces_the_published_fastspeech2_schedule() -> None:
    published = {"convention": "paper", "milestones": "300000,400000,500000", "rate": 0.3}
    factor, options = SCHEDULES["noam"].factor, _options("noam", **published)

    at = {step: factor(step, 900_000, options) for step in (300_000, 300_001, 600_000)}

    assert at[300_000] == pytest.approx(0.0625 * 300_000**-0.5)
    assert at[300_001] == pytest.approx(0.0625 * 300_001**-0.5 * 0.3)
    assert at[600_000] == pytest.approx(0.0625 * 600_000**-0.5 * 0.027)


@pytest.mark.parametrize("text", ["a,b", "100;200", "-5", "1.5", "0"])
@pytest.mark.parametrize("name", ["warmup_plateau_anneal", "noam"])
def test_milestones_that_are_no_steps_are_refused_with_an_example(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match="200000,400000,600000"):
        _options(name, milestones=text)


def test_milestones_come_sorted_and_may_be_empty() -> None:
    assert parse_milestones("300, 100,200,") == (100, 200, 300)
    assert parse_milestones("") == ()


@each_schedule
@pytest.mark.parametrize("total_steps", LENGTHS)
def test_a_curve_runs_from_the_first_step_to_the_last(name: str, total_steps: int) -> None:
    schedule, options = SCHEDULES[name], _options(name)

    curve = lr_curve(schedule, options, lr=2e-3, total_steps=total_steps, points=50)

    steps = [step for step, _ in curve]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (1, total_steps)
    assert all(
        lr == pytest.approx(2e-3 * schedule.factor(step, total_steps, options))
        for step, lr in curve
    )


def test_a_curve_holds_its_peak_and_its_corners_however_few_points_it_has() -> None:
    schedule = SCHEDULES["warmup_plateau_anneal"]
    options = _options("warmup_plateau_anneal", warmup_steps=333, milestones="5000")

    curve = dict(lr_curve(schedule, options, lr=1e-4, total_steps=10_000, points=2))

    assert curve[333] == pytest.approx(1e-4)
    assert curve[5000] == pytest.approx(1e-4)
    assert curve[5001] == pytest.approx(5e-5)


def test_a_warmup_longer_than_the_run_is_warned_of() -> None:
    warnings = warnings_for(SCHEDULES["noam"], _options("noam"), total_steps=400)

    assert len(warnings) == 1
    assert "4000 steps" in warnings[0]
    assert "ends at 0.1" in warnings[0]


def test_milestones_that_never_arrive_are_warned_of_by_name() -> None:
    options = _options("warmup_plateau_anneal", warmup_steps=10)

    warnings = warnings_for(SCHEDULES["warmup_plateau_anneal"], options, total_steps=300_000)

    assert len(warnings) == 1
    assert "400000, 600000" in warnings[0]
    assert "200000" not in warnings[0]


def test_the_papers_convention_is_warned_of_with_its_largest_factor() -> None:
    options = _options("noam", convention="paper")

    warnings = warnings_for(SCHEDULES["noam"], options, total_steps=900_000)

    assert len(warnings) == 1
    assert "0.00099" in warnings[0]


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("total_steps", LENGTHS)
def test_defaults_that_fit_any_run_bring_no_warning(name: str, total_steps: int) -> None:
    assert warnings_for(SCHEDULES[name], _options(name), total_steps) == []


def test_schedules_are_read_without_torch() -> None:
    program = "import sys, trainer.config.schedules; sys.exit('torch' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", program], check=False)

    assert result.returncode == 0

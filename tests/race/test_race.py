"""The race: its plan, its queue of runs, its verdict; planted cases, stops and kills."""

import argparse
import csv
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.helpers.holding import hold
from tests.helpers.toy import ToyModel, make_setup, set_lr_factor
from trainer.commands.race import COMMAND
from trainer.config.resolve import find_optimizer
from trainer.core.errors import ConfigError, RunExists, RunOwned, TimbreError
from trainer.core.events import Event, RunFinished, RunStarted, StepDone, ValidationDone
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.core.train_state import Cadence
from trainer.race import Contender, Race, RacePlan
from trainer.race.contenders import read_contenders
from trainer.race.jobs import PACE_STEPS, chosen_value, find_steps, known_jobs
from trainer.race.publish import publish
from trainer.race.report import make_report, to_csv, to_json, to_markdown
from trainer.race.result import Result, read_result
from trainer.race.verdict import compare, noise_between_seeds
from trainer.runs.locks import acquire_lock
from trainer.runs.run import Run
from trainer.training.loop import train
from trainer.training.nan_recovery import LossNotFinite

DEMO = Path(__file__).parent.parent.parent / "assets" / "demo"
CONFIG = RunConfig(data=DataConfig(train_csv="a.csv"))


def _contender(name: str, *rates: float, ratio: float = 3.0) -> Contender:
    optimizer = Choice(name.split("-")[0])
    return Contender(name, optimizer, Choice("constant"), "lr", rates, ratio, 1e-9, 1e9)


def _plan(*entrants: Contender, **values: object) -> RacePlan:
    given = {"seeds": (1, 2), "steps": 24, "num_validations": 6} | values
    return RacePlan(CONFIG, entrants, **given)  # type: ignore[arg-type]


def _train_toy(run: Run, wants_stop: Callable[[], bool]) -> str:
    """Train the toy network in this process as the run says."""
    config = run.config
    training, options = config.training, config.optimizer.options
    name = config.optimizer.name
    state = make_setup(
        run.folder,
        optimizer=name,
        steps=training.steps or 1,
        seed=training.seed,
        roll_back=training.roll_back,
    )
    torch.manual_seed(training.seed)
    state.model.load_state_dict(ToyModel().state_dict())
    state.base_lr = options["lr"]
    set_lr_factor(state, lambda step: 1.0)
    state.validate_every = Cadence(int(training.validate_every.split()[0]))
    run.events.append(RunStarted(1, training.steps or 1, 4))
    try:
        outcome = train(state, lambda event: run.events.append(_steady(event)))
    except LossNotFinite as error:
        outcome = "failed"
        run.events.append(RunFinished(outcome, run.series().last_step, str(error)))
        return outcome
    run.events.append(RunFinished(outcome, training.steps or 1))
    return outcome


def _steady(event: Event) -> Event:
    """Return the event with a step time that does not depend on what else the machine does."""
    if isinstance(event, StepDone):
        steady = {"perf/s_per_step": 0.01, "perf/cpu_s_per_step": 0.01}
        return replace(event, metrics=event.metrics | steady)
    return event


def _silent(text: str) -> None:
    return None


def _result(score: float, *, s_per_step: float = 0.1, state: str = "finished") -> Result:
    return Result(
        state=state, reason="", steps=(24,), seconds=(2.4,), losses=(score,), first_loss=3.0,
        s_per_step=s_per_step, fast_s_per_step=s_per_step,
        optimizer_s=0.01, peak_memory_gib=1.0, warmup_s=0.0,
        validation_s=0.5, wall_s=10.0,
    )  # fmt: skip


def _ended(plan: RacePlan, score: Callable[[str, int], float], **speeds: float) -> dict:
    """Return results of every job of a race, by a function of entrant and seed."""
    results: dict[str, Result] = {}
    while left := [job for job in known_jobs(plan, results) if job.name not in results]:
        for job in left:
            loss = score(job.entrant.name, job.seed)
            state = "finished" if math.isfinite(loss) else "diverged"
            speed = speeds.get(job.entrant.name, 0.1)
            results[job.name] = _result(loss, s_per_step=speed, state=state)
    return results


# The plan


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = _plan(_contender("adamw", 1e-3, 3e-3), _contender("adamw-2", 1e-2), minutes=5.0)

    race = Race.create(tmp_path / "race", plan)

    assert Race.open(race.folder).plan == plan


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"seeds": (1,)}, "two or more"),
        ({"seeds": (1, 1)}, "two or more"),
        ({"seeds": (-1, 1)}, "two or more"),
        ({"steps": None}, "no end"),
        ({"steps": 3}, "at least 10"),
    ],
)
def test_a_plan_that_can_show_nothing_is_refused(values: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _plan(_contender("adamw", 1e-3), _contender("adamw-2", 1e-3), **values)


def test_one_entrant_is_no_race() -> None:
    with pytest.raises(ConfigError, match="two or more optimizers"):
        _plan(_contender("adamw", 1e-3))


def test_rates_lie_around_the_usual_one_and_choices_are_kept() -> None:
    text = "adamw,adamw:lr=1e-4:beta2=0.98,adamw:lr=1e-4/1e-3,prodigy,schedule_free_adamw"

    swept, fixed, listed, prodigy, free = read_contenders(text, CONFIG, 5)

    assert [contender.name for contender in (swept, fixed, listed)] == [
        "adamw",
        "adamw-2",
        "adamw-3",
    ]
    assert len(swept.values) == 5
    assert swept.values[3] / swept.values[2] == pytest.approx(2**1.5, rel=1e-3)
    assert (fixed.values, fixed.optimizer.options) == ((1e-4,), {"beta2": 0.98})
    assert listed.values == (1e-4, 1e-3)
    assert (prodigy.knob, prodigy.values[0], prodigy.values[-1]) == ("d_coef", 0.3333, 3.0)
    assert free.schedule == Choice("constant")
    assert (free.paced, swept.paced) == (("warmup_steps",), ())


def test_rates_that_a_family_does_not_name_follow_the_one_of_their_relative() -> None:
    config = replace(CONFIG, family=Choice("xtts"))

    adamw, lion, adafactor = read_contenders("adamw,lion,adafactor", config, 1)

    assert lion.values[0] == pytest.approx(adamw.values[0] / 5)
    assert adafactor.values == (find_optimizer("adafactor").default_lr,)


def test_every_bad_entrant_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        read_contenders("adamm,adamw:beta9=1,adamw:lr=fast,adamw:fast", CONFIG, 5)

    assert len(error.value.problems) == 4
    assert "adamw" in error.value.problems[0]


def test_runs_differ_in_nothing_but_the_optimizer_and_its_schedule() -> None:
    plan = _plan(*read_contenders("adamw,schedule_free_adamw:lr=1e-3", CONFIG, 1), steps=200)
    common = {"seed": 7, "steps": 200, "num_validations": 10}

    first, second = (plan.run_config(e, 1e-3, **common).to_json() for e in plan.entrants)

    assert {key for key in first if first[key] != second[key]} == {"optimizer", "schedule"}
    assert first["training"]["seed"] == 7
    assert first["training"]["validate_every"] == "20 steps"
    assert second["optimizer"]["options"] == {"lr": 1e-3, "warmup_steps": 10}


# The queue


def test_entrants_take_turns_and_the_order_turns_round() -> None:
    plan = _plan(_contender("adamw", 1e-3), _contender("adamw-2", 1e-2))

    names = [job.name for job in known_jobs(plan, {})]

    assert names == [
        "steps-adamw-seed1", "steps-adamw-2-seed1", "steps-adamw-2-seed2", "steps-adamw-seed2",
    ]  # fmt: skip


def test_a_sweep_goes_on_beyond_the_end_that_was_best() -> None:
    plan = _plan(_contender("adamw", 1e-3, 3e-3), _contender("adamw-2", 1e-2))
    best_at = {1e-3: 3.0, 3e-3: 2.0, 9e-3: 1.0, 2.7e-2: 5.0}
    results: dict[str, Result] = {}

    while jobs := [j for j in known_jobs(plan, results) if j.name not in results]:
        job = jobs[0]
        results[job.name] = _result(best_at.get(job.value, 1.0))

    assert [name for name in results if name.startswith("sweep")] == [
        "sweep-adamw-0.001", "sweep-adamw-0.003", "sweep-adamw-0.009", "sweep-adamw-0.027",
    ]  # fmt: skip
    assert chosen_value(plan, plan.baseline, results) == 9e-3


@pytest.mark.parametrize("best", [1e-6, 1e-4, 1.0])
def test_a_sweep_ends_where_its_best_rate_lies_between_two_others(best: float) -> None:
    plan = _plan(_contender("adamw", 1e-3, 3e-3), _contender("adamw-2", 1e-2))
    results: dict[str, Result] = {}

    while jobs := [j for j in known_jobs(plan, results) if j.name not in results]:
        results[jobs[0].name] = _result(1.0 + abs(math.log(jobs[0].value / best)))
    tried = sorted(float(name.split("-", 2)[2]) for name in results if name.startswith("sweep"))

    assert tried[0] < chosen_value(plan, plan.baseline, results) < tried[-1]  # type: ignore[operator]
    assert not [words for words in make_report(plan, results).caveats if "at an end" in words]


def test_a_sweep_without_an_end_is_ended_and_told() -> None:
    plan = _plan(_contender("adamw", 1e-3, 3e-3), _contender("adamw-2", 1e-2), most_extensions=4)
    results: dict[str, Result] = {}

    while jobs := [j for j in known_jobs(plan, results) if j.name not in results]:
        results[jobs[0].name] = _result(1.0 / (1.0 + jobs[0].value))
    report = make_report(plan, results)

    assert report.rows[0].sweep_runs == 2 + 4
    assert [words for words in report.caveats if "chosen by one run of 10 steps" in words]
    assert [words for words in report.caveats if "adamw's best lr, 0.243, is at an end" in words]


def test_a_race_of_a_time_with_shorter_sweeps_stays_finished() -> None:
    values = _plan(_contender("adamw", 1e-3, 3e-3), _contender("adamw-2", 1e-2)).to_json()
    del values["most_extensions"]

    assert RacePlan.from_json(values).most_extensions == 2


def test_an_entrant_that_diverges_at_every_rate_does_not_race() -> None:
    plan = _plan(_contender("adamw", 1e-3), _contender("adamw-2", 1.0, 3.0))

    results = _ended(plan, lambda name, seed: 1.0 if name == "adamw" else math.nan)
    report = make_report(plan, results)

    assert "steps-adamw-2-seed1" not in results
    assert min(float(n.split("-")[-1]) for n in results if n.startswith("sweep")) < 1.0
    assert [c.outcome for c in report.comparisons] == ["diverged", "diverged"]


def test_slower_steps_get_fewer_of_them_for_equal_seconds() -> None:
    plan = _plan(_contender("adamw", 1e-3), _contender("adamw-2", 1e-3), steps=100)

    results = _ended(plan, lambda name, seed: 1.0 + 0.1 * seed, **{"adamw-2": 0.2})
    report = make_report(plan, results)
    jobs = {job.name: job.steps for job in known_jobs(plan, results)}

    assert jobs["seconds-adamw-2-seed1"] == 50
    assert "seconds-adamw-seed1" not in jobs
    assert [row.steps_for_seconds for row in report.rows] == [100, 50]


def test_steps_that_vary_more_from_run_to_run_than_between_entrants_are_equally_long() -> None:
    plan = _plan(_contender("adamw", 1e-3), _contender("adamw-2", 1e-3), steps=100)
    results = _ended(plan, lambda name, seed: 1.0, **{"adamw-2": 0.15})
    name = "steps-adamw-seed2"
    results[name] = replace(results[name], fast_s_per_step=0.2)

    report = make_report(plan, results)

    assert [row.steps_for_seconds for row in report.rows] == [100, 100]


def test_the_steps_are_found_from_the_minutes() -> None:
    plan = _plan(_contender("adamw", 1e-3), _contender("adamw-2", 1e-3), steps=None, minutes=5.0)
    pace = replace(_result(1.0), wall_s=8.0 + PACE_STEPS * 0.1 + 0.5)
    results = {f"pace-{name}-seed3": pace for name in ("adamw", "adamw-2")}

    steps = find_steps(plan, results)

    num_runs, num_validations = 4, plan.num_validations
    expected_s = 2 * pace.wall_s + num_runs * (8.0 + 0.5 * num_validations + 0.1 * steps)
    assert [job.name for job in known_jobs(plan, {})] == list(results)
    assert expected_s == pytest.approx(300, abs=1)
    with pytest.raises(ConfigError, match="too few"):
        find_steps(replace(plan, minutes=1.0), results)


def test_planted_cases_a_bad_rate_loses_and_twins_are_equal(tmp_path: Path) -> None:
    entrants = (_contender("adamw", 1e-2), _contender("adamw-2", 1e-2), _contender("adamw-3", 3e-5))
    race = Race.create(tmp_path / "race", _plan(*entrants, seeds=(1, 2, 3), steps=60))

    assert race.carry_out(_silent, _train_toy) == "finished"
    report = make_report(race.plan, race.results())

    outcomes = {(c.rival, c.clock): c.outcome for c in report.comparisons}
    assert outcomes[("adamw-2", "steps")] == "no difference"
    assert outcomes[("adamw-2", "seconds")] == "no difference"
    assert outcomes[("adamw-3", "steps")] == "worse"
    assert "the same to the last digit" in "\n".join(report.verdict)
    assert race.status().state == "finished"


def test_a_rate_that_is_far_too_high_loses(tmp_path: Path) -> None:
    entrants = (_contender("adamw", 1e-2), _contender("adamw-2", 300.0))
    race = Race.create(tmp_path / "race", _plan(*entrants))

    race.carry_out(_silent, _train_toy)
    report = make_report(race.plan, race.results())

    assert report.comparisons[0].outcome == "diverged"
    assert report.verdict[0] == "At equal steps adamw-2 is worse than adamw."
    assert report.rows[1].diverged == "2 of 2"


def test_a_sweep_saves_an_entrant_from_its_bad_rates(tmp_path: Path) -> None:
    entrants = (_contender("adamw", 1e-2), _contender("adamw-2", 1e-5, 1e-2, 1e3, ratio=1e3))
    race = Race.create(tmp_path / "race", _plan(*entrants))

    race.carry_out(_silent, _train_toy)
    report = make_report(race.plan, race.results())

    assert report.rows[1].value == 1e-2
    assert report.rows[1].sweep_runs == 3
    assert report.comparisons[0].outcome == "no difference"


def test_a_stopped_race_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    race = Race.create(
        tmp_path / "race", _plan(_contender("adamw", 1e-2), _contender("adamw-2", 1e-2))
    )
    before = (race.folder / "race.json").read_bytes()
    trained: list[str] = []

    def train_and_stop(run: Run, wants_stop: Callable[[], bool]) -> str:
        trained.append(run.name)
        state = _train_toy(run, wants_stop)
        if len(trained) == 2:
            race.request_stop()
        return state

    first = race.carry_out(_silent, train_and_stop)
    status = race.status()
    second = Race.open(race.folder).carry_out(_silent, train_and_stop)

    assert (first, second) == ("stopped", "finished")
    assert (status.state, status.done, status.total) == ("stopped", 2, 4)
    assert len(trained) == len(set(trained)) == 4
    assert (race.folder / "race.json").read_bytes() == before


def test_a_run_that_fails_is_told_left_out_and_tried_again_next_time(tmp_path: Path) -> None:
    race = Race.create(
        tmp_path / "race", _plan(_contender("adamw", 1e-2), _contender("adamw-2", 1e-2))
    )

    def fail_second(run: Run, wants_stop: Callable[[], bool]) -> str:
        if "adamw-2" not in run.name:
            return _train_toy(run, wants_stop)
        run.events.append(RunFinished("failed", 0, "No package."))
        return "failed"

    race.carry_out(_silent, fail_second)
    failed = make_report(race.plan, race.results())
    race.carry_out(_silent, _train_toy)
    mended = make_report(race.plan, race.results())

    assert failed.comparisons[0].outcome == "unknown"
    assert "adamw-2 failed in 2 runs: No package." in failed.caveats
    assert mended.comparisons[0].outcome == "no difference"


def test_a_run_that_ends_without_a_word_ends_the_race_with_one(tmp_path: Path) -> None:
    race = Race.create(
        tmp_path / "race", _plan(_contender("adamw", 1e-2), _contender("adamw-2", 1e-2))
    )

    with pytest.raises(TimbreError, match="without an error"):
        race.carry_out(_silent, lambda run, wants_stop: "interrupted")


def test_weights_are_kept_only_if_wanted(tmp_path: Path) -> None:
    entrants = (_contender("adamw", 1e-2), _contender("adamw-2", 1e-2))

    for wanted in (False, True):
        race = Race.create(tmp_path / str(wanted), _plan(*entrants, keep_weights=wanted))
        race.carry_out(_silent, _train_toy)
        kept = list(race.folder.glob("*/checkpoints/step-*"))
        assert bool(kept) == wanted


def test_one_process_at_a_time_carries_out_a_race(tmp_path: Path) -> None:
    race = Race.create(
        tmp_path / "race", _plan(_contender("adamw", 1e-2), _contender("adamw-2", 1e-2))
    )
    lock = acquire_lock(race.folder / "owner.lock")
    assert lock is not None

    with pytest.raises(RunOwned):
        race.carry_out(_silent, _train_toy)

    assert race.status().state == "running"
    lock.release()


# Results


def test_seconds_leave_warming_up_and_validating_out(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    run.events.append(RunStarted(1, 10, 4))
    for step in range(1, 11):
        seconds = 5.0 if step == 1 else 0.1
        metrics = {"train/loss": 2.0, "perf/s_per_step": seconds, "perf/host_memory_gib": 1.5}
        run.events.append(StepDone(step, metrics))
    run.events.append(ValidationDone(10, {"val/loss": 1.5}))
    unfinished = read_result(run)
    run.events.append(RunFinished("finished", 10))

    result = read_result(run)

    assert unfinished is None
    assert result is not None
    assert (result.state, result.score, result.peak_memory_gib) == ("finished", 1.5, 1.5)
    assert result.seconds == pytest.approx((1.0,))
    assert result.warmup_s == pytest.approx(4.9)
    assert result.s_per_step == pytest.approx(0.1)


@pytest.mark.parametrize(("clock", "processor"), [(0.4, 0.1), (0.1, 0.2)])
def test_a_step_counts_as_what_it_takes_when_nothing_else_runs(
    tmp_path: Path, clock: float, processor: float
) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    run.events.append(RunStarted(1, 10, 4))
    told = {"perf/s_per_step": clock, "perf/cpu_s_per_step": processor, "perf/optimizer_s": 0.05}
    for step in range(1, 11):
        run.events.append(StepDone(step, {"train/loss": 2.0} | told))
    run.events.append(ValidationDone(10, {"val/loss": 1.5}))
    run.events.append(RunFinished("finished", 10))

    result = read_result(run)

    assert result is not None
    assert result.s_per_step == pytest.approx(0.1)
    assert result.optimizer_s == pytest.approx(0.1 * 0.05 / clock)


def test_without_validations_a_run_says_what_is_missing(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", CONFIG)
    run.events.append(RunStarted(1, 1, 4))
    run.events.append(StepDone(1, {"train/loss": 2.0, "perf/s_per_step": 0.1}))
    run.events.append(RunFinished("finished", 1))

    result = read_result(run)

    assert result is not None
    assert result.state == "failed"
    assert "eval CSV" in result.reason


def test_without_runs_of_equal_seconds_nothing_is_said_of_them() -> None:
    plan = _plan(_contender("adamw", 1e-3), _contender("lion", 1e-3))
    slow = _ended(plan, lambda name, seed: 1.0 + seed, adamw=0.1, lion=0.2)
    stopped = {name: one for name, one in slow.items() if not name.startswith("seconds-")}

    row = make_report(plan, stopped).rows[1]

    assert row.loss_at_steps == 2.5
    assert (row.loss_at_seconds, row.at_seconds) == (None, "unknown")


# The verdict


def _compare(scores: list[float], usual: list[float], num_rivals: int = 1) -> tuple[str, str]:
    pair = (dict(enumerate(scores)), dict(enumerate(usual)))
    found = compare("b", "a", "steps", *pair, num_rivals=num_rivals)
    return found.outcome, found.text


def test_a_difference_larger_than_chance_is_told() -> None:
    assert _compare([0.90, 1.01, 0.96], [1.00, 1.10, 1.05])[0] == "better"
    assert _compare([1.10, 1.21, 1.16], [1.00, 1.10, 1.05])[0] == "worse"


def test_a_difference_within_chance_is_none_at_this_budget() -> None:
    outcome, text = _compare([0.99, 1.12, 1.03], [1.00, 1.10, 1.05])

    assert outcome == "no difference"
    assert "no difference at this budget" in text


def test_the_same_losses_are_equal_and_tiny_differences_do_not_matter() -> None:
    assert _compare([1.0, 2.0], [1.0, 2.0])[0] == "no difference"
    assert "too small to matter" in _compare([1.001, 2.001], [1.0, 2.0])[1]


def test_two_seeds_need_a_far_larger_difference_than_five() -> None:
    usual = [1.00, 1.10, 1.05, 0.95, 1.02]
    better = [0.92, 1.01, 0.96, 0.88, 0.94]

    assert _compare(better, usual)[0] == "better"
    assert _compare([0.92, 1.00], [1.00, 1.10])[0] == "no difference"


def test_many_rivals_need_a_larger_difference_each() -> None:
    scores, usual = [0.95, 1.06, 1.02], [1.00, 1.10, 1.05]

    assert _compare(scores, usual)[0] == "better"
    assert _compare(scores, usual, num_rivals=10)[0] == "no difference"


def test_who_diverges_more_often_loses() -> None:
    assert _compare([math.nan, 1.0], [1.0, 1.0])[0] == "diverged"
    assert _compare([1.0, 1.0], [math.nan, 1.0])[0] == "better"
    assert _compare([math.nan, 1.0], [math.nan, 1.0])[0] == "unknown"


def test_the_noise_between_seeds_is_that_of_the_baseline() -> None:
    assert noise_between_seeds({1: 1.0, 2: 1.2, 3: math.nan}) == pytest.approx(0.1414, abs=1e-3)
    assert noise_between_seeds({1: 1.0}) is None


# The report


def test_the_report_is_a_table_in_every_form(tmp_path: Path) -> None:
    plan = _plan(
        _contender("adamw", 1e-3), _contender("adamw-2", 1e-3, 3e-3), _contender("adamw-3", 1.0)
    )
    table = {"adamw": 1.0, "adamw-2": 1.3, "adamw-3": math.nan}
    results = _ended(plan, lambda name, seed: table[name] + 0.01 * seed, **{"adamw-2": 0.3})
    report = make_report(plan, results)

    rows = list(csv.DictReader(io.StringIO(to_csv(report))))
    values = json.loads(to_json(plan, results, report, {"device": "test"}))
    markdown = to_markdown(report)

    assert [row["entrant"] for row in rows] == ["adamw", "adamw-2", "adamw-3"]
    assert rows[1]["at_steps"].startswith("worse: +0.3000")
    assert [row["steps_for_seconds"] for row in rows] == ["24", "10", "24"]
    assert "NaN" not in json.dumps(values)
    assert set(values["runs"]) == set(results)
    assert "adamw-2 and adamw-3 are worse than adamw" in markdown
    assert all(f"| {name} |" in markdown for name in table)


def test_different_first_losses_of_a_seed_are_told() -> None:
    plan = _plan(_contender("adamw", 1e-3), _contender("adamw-2", 1e-3))
    results = _ended(plan, lambda name, seed: 1.0)
    name = "steps-adamw-2-seed2"
    results[name] = replace(results[name], first_loss=3.1)

    caveats = "\n".join(make_report(plan, results).caveats)

    assert "With seed 2 the first losses differ" in caveats
    assert "With seed 1" not in caveats


def test_steps_that_took_now_shorter_now_longer_are_told() -> None:
    plan = _plan(_contender("adamw", 1e-3), _contender("adamw-2", 1e-3))
    even = _ended(plan, lambda name, seed: 1.0)
    uneven = even | {"steps-adamw-seed2": replace(even["steps-adamw-seed2"], s_per_step=0.13)}

    told = "the machine was doing other work"

    assert told not in "\n".join(make_report(plan, even).caveats)
    assert told in "\n".join(make_report(plan, uneven).caveats)


def test_a_run_that_failed_before_its_first_steps_hides_no_figure_of_the_others() -> None:
    plan = _plan(_contender("adamw", 1e-3), _contender("adamw-2", 1e-3))
    nothing = {"state": "failed", "s_per_step": math.nan, "peak_memory_gib": math.nan}
    results = _ended(plan, lambda name, seed: 1.0)
    results |= {"steps-adamw-seed1": replace(results["steps-adamw-seed1"], **nothing)}
    usual = results["steps-adamw-seed2"]

    report = make_report(plan, results)

    row = next(row for row in report.rows if row.entrant == "adamw")
    assert row.peak_memory_gib == usual.peak_memory_gib
    assert "nan" not in "\n".join(report.caveats)


def test_a_finished_race_publishes_its_table_and_picture(tmp_path: Path) -> None:
    entrants = (_contender("adamw", 1e-2), _contender("adamw-2", 1e-3, 1e-2))
    race = Race.create(tmp_path / "race", _plan(*entrants))
    race.carry_out(_silent, _train_toy)
    told: list[str] = []

    publish(race, told.append)

    names = {path.name for path in race.folder.iterdir() if path.is_file()}
    assert {"race.md", "race.csv", "results.json", "race.png"} <= names
    assert (race.folder / "race.png").read_bytes().startswith(b"\x89PNG")
    assert "sweep" in told[-1] and "steps" in told[-1]


# The command line


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Words that name a few demo clips, with a feature cache of their own."""
    folder = tmp_path_factory.mktemp("race")
    for name, count in (("train", 8), ("eval", 2)):
        lines = (DEMO / f"{name}.csv").read_text(encoding="utf-8").splitlines()[: count + 1]
        rows = [lines[0], *(f"{DEMO}/{line}" for line in lines[1:])]
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    csvs = ["--train-csv", str(folder / "train.csv"), "--eval-csv", str(folder / "eval.csv")]
    os.environ["TIMBRE_CACHE"] = str(folder / "cache")
    yield [*csvs, "--batch-size", "2"]
    del os.environ["TIMBRE_CACHE"]


def _race(words: list[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "trainer", "race", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(allow_abbrev=False)


def test_the_plan_of_a_race_never_changes(tmp_path: Path, words: list[str]) -> None:
    plan = _plan(_contender("adamw", 1e-2), _contender("adamw-2", 1e-2))
    race = Race.create(tmp_path / "race", plan)
    where = ["--race", str(race.folder)]

    with pytest.raises(ConfigError, match="never changes"):
        COMMAND.run(_parser(), [*where, *words, "--steps", "99"], _silent)
    with pytest.raises(RunExists):
        Race.create(race.folder, plan)

    assert race.plan == plan


def test_what_cannot_race_is_refused_before_there_is_a_folder(
    tmp_path: Path, words: list[str]
) -> None:
    where = ["--race", str(tmp_path / "race"), *words]

    with pytest.raises(ConfigError, match="no end"):
        COMMAND.run(_parser(), where, _silent)
    with pytest.raises(ConfigError, match="muonn"):
        COMMAND.run(_parser(), [*where, "--optimizers", "adamw,muonn"], _silent)

    assert not (tmp_path / "race").exists()


def test_a_race_killed_in_the_middle_of_a_run_goes_on_to_its_verdict(
    tmp_path: Path, words: list[str]
) -> None:
    folder = tmp_path / "race"
    asked = [
        "--race", str(folder), *words, "--optimizers", "adamw:lr=1e-3,adamw:lr=1e-3",
        "--seeds", "1,2", "--steps", "10", "--validations", "3",
    ]  # fmt: skip
    process, first, trainer = hold(
        lambda: _race(asked), folder, lambda run: run.series().last_step > 0
    )
    process.kill()
    process.communicate()
    killed = Race.open(folder).status()
    os.kill(trainer, signal.SIGKILL)

    told: list[str] = []
    code = COMMAND.run(_parser(), ["--race", str(folder)], told.append)

    starts = [m for m in first.series().marks if m.kind == "started"]
    results = json.loads((folder / "results.json").read_text())
    assert (killed.state, killed.done) == ("stopped", 0)
    assert code == 0
    assert len(starts) == 2 and first.status().state == "finished"
    assert "no difference at this budget" in "\n".join(told)
    curves = {name: run["losses"] for name, run in results["runs"].items()}
    assert curves["steps-adamw-seed1"] == curves["steps-adamw-2-seed1"]
    assert curves["steps-adamw-seed1"] != curves["steps-adamw-seed2"]


def test_training_settings_of_a_run_come_from_the_common_configuration() -> None:
    config = CONFIG.with_values(training=TrainingConfig(batch_size=3, patience=5, ema_decay=0.9))
    plan = RacePlan(
        config, (_contender("adamw", 1e-3), _contender("adamw-2", 1e-3)), (1, 2), steps=50
    )

    training = plan.run_config(plan.baseline, 1e-3, seed=1, steps=50, num_validations=5).training

    assert (training.batch_size, training.ema_decay) == (3, 0.9)
    assert (training.patience, training.preview_every, training.log_every) == (0, "never", 1)

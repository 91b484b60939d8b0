"""Decide which runs a race needs next, as a pure function of its plan and results so far."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainer.core.errors import ConfigError
from trainer.race.plan import MIN_STEPS, SWEEP_SHARE, Contender, RacePlan
from trainer.race.result import Result

PACE_STEPS = 12
"""Steps of the run that times an optimizer; chosen by hand: the first five are warm-up and not
counted (`result.py`), the rest give a median."""
_LIKELY_EXTENSIONS = 2
"""Extra sweep values that a time budget allows for; chosen by hand."""
# Chosen by hand: only the last one scores a sweep run, and validating takes time.
_SWEEP_VALIDATIONS = 2
_EQUALLY_FAST = 1.1
"""Step times within this factor count as equal, because timing is no more precise than that."""


@dataclass(frozen=True)
class RaceJob:
    """One run of a race; `clock` is its purpose: pace, sweep, steps or seconds."""

    clock: str
    entrant: Contender
    value: float
    seed: int
    steps: int
    num_validations: int

    @property
    def name(self) -> str:
        """The run's folder name."""
        last = f"{self.value:.4g}" if self.clock == "sweep" else f"seed{self.seed}"
        return f"{self.clock}-{self.entrant.name}-{last}"


Results = Mapping[str, Result]
"""Results by job name."""


def known_jobs(plan: RacePlan, results: Results) -> list[RaceJob]:
    """List the jobs that are certain so far, in order; the first without a result is next.

    First come timing runs (if minutes are given), then the sweeps, then equal steps, and then equal
    seconds for contenders whose steps take longer or shorter than the baseline's. Contenders take
    turns, in reverse order for every second seed, so that a machine that gets slower affects all of
    them equally.
    """
    jobs = _pace_jobs(plan)
    if _is_missing(jobs, results):
        return jobs
    steps = find_steps(plan, results)
    sweeps = [sweep_jobs(plan, contender, steps, results) for contender in plan.entrants]
    jobs += _in_turn(sweeps)
    if _is_missing(jobs, results):
        return jobs
    jobs += _race_jobs(
        plan, {contender.name: steps for contender in plan.entrants}, "steps", results
    )
    if _is_missing(jobs, results):
        return jobs
    return jobs + _race_jobs(plan, steps_for_seconds(plan, steps, results), "seconds", results)


def find_steps(plan: RacePlan, results: Results) -> int:
    """Return the steps of every run: as configured, but no more than fit into the minutes.

    Raises:
        ConfigError: the minutes are too few for the minimum number of steps.
    """
    if plan.minutes is None:
        assert plan.steps is not None
        return plan.steps
    paces = {job.entrant.name: results[job.name] for job in _pace_jobs(plan)}
    fixed_s = sum(pace.wall_s for pace in paces.values())
    step_s = 0.0
    for contender in plan.entrants:
        runs_s, per_step_s = _cost(plan, contender, paces)
        fixed_s, step_s = fixed_s + runs_s, step_s + per_step_s
    budget_s = 60 * plan.minutes
    # Floor: a race that ends early is better than one that runs over its minutes.
    steps = math.floor((budget_s - fixed_s) / step_s) if step_s > 0 else 0
    if steps < MIN_STEPS:
        needed = math.ceil((fixed_s + MIN_STEPS * step_s) / 60)
        raise ConfigError(
            f"{plan.minutes:g} minutes are too few: starting and validating all runs, the sweeps, "
            f"and {MIN_STEPS} steps per run take about {needed} minutes on this machine. Start "
            "a new race with more minutes, fewer optimizers, rates or seeds, or a smaller eval CSV."
        )
    return min(steps, plan.steps) if plan.steps is not None else steps


def sweep_jobs(plan: RacePlan, contender: Contender, steps: int, results: Results) -> list[RaceJob]:
    """Return a contender's sweep, extended until its best value lies between two others."""
    if len(contender.values) == 1:
        return []
    short = plan.sweep_steps_for(steps)
    values = list(contender.values)
    while True:
        jobs = [
            RaceJob("sweep", contender, value, plan.sweep_seed, short, _SWEEP_VALIDATIONS)
            for value in values
        ]
        # The sweep is recomputed from its results each time, so an interrupted one needs no state.
        beyond = _value_beyond(contender, jobs, results)
        # The limit ends a sweep whose loss keeps falling towards one end for ever.
        if beyond is None or len(values) >= len(contender.values) + plan.most_extensions:
            return jobs
        values.append(beyond)


def chosen_value(plan: RacePlan, contender: Contender, results: Results) -> float | None:
    """Return a contender's value for the race: its only one or the best of its sweep."""
    if len(contender.values) == 1:
        return contender.values[0]
    jobs = sweep_jobs(plan, contender, find_steps(plan, results), results)
    scores = {job.value: results[job.name].score for job in jobs if job.name in results}
    # A diverged run scores NaN, and `min` over NaN depends on the order.
    finished = [value for value, score in scores.items() if math.isfinite(score)]
    return min(finished, key=lambda value: scores[value]) if finished else None


def steps_for_seconds(plan: RacePlan, steps: int, results: Results) -> dict[str, int]:
    """Return, by contender, the steps that fit into the seconds that the baseline trains.

    Step times count as equal if they are within 10 %, or if the ranges of the two contenders
    overlap: then other work on the machine can explain the difference.
    """
    usual = _speeds(plan, plan.baseline, results)
    found = {}
    for contender in plan.entrants:
        own = _speeds(plan, contender, results)
        are_known = bool(own and usual)
        # The fastest run is the least disturbed one.
        ratio = min(own) / min(usual) if are_known else 1.0
        overlap = are_known and min(own) <= max(usual) and min(usual) <= max(own)
        is_alike = overlap or is_equally_fast(ratio)
        found[contender.name] = steps if is_alike else max(MIN_STEPS, round(steps / ratio))
    return found


def is_equally_fast(ratio: float) -> bool:
    """Return whether two step times with this ratio count as equal."""
    return 1 / _EQUALLY_FAST <= ratio <= _EQUALLY_FAST


def _pace_jobs(plan: RacePlan) -> list[RaceJob]:
    if plan.minutes is None:
        return []
    return [
        RaceJob("pace", contender, _middle(contender), plan.sweep_seed, PACE_STEPS, 1)
        for contender in plan.entrants
    ]


def _race_jobs(
    plan: RacePlan, steps: dict[str, int], clock: str, results: Results
) -> list[RaceJob]:
    """Return one run per seed for every contender that can race and needs runs for this clock."""
    common = find_steps(plan, results)
    jobs = []
    for turn, seed in enumerate(plan.seeds):
        for contender in plan.entrants if turn % 2 == 0 else reversed(plan.entrants):
            value = chosen_value(plan, contender, results)
            is_served = steps[contender.name] == common or _has_lost(plan, contender, results)
            # No value: every rate diverged or failed, and racing one again would only repeat that.
            if value is None or (clock == "seconds" and is_served):
                continue
            count = steps[contender.name]
            jobs.append(RaceJob(clock, contender, value, seed, count, plan.num_validations))
    return jobs


def _is_missing(jobs: Iterable[RaceJob], results: Results) -> bool:
    return any(job.name not in results for job in jobs)


def _in_turn(queues: list[list[RaceJob]]) -> list[RaceJob]:
    longest = max(len(queue) for queue in queues)
    return [queue[turn] for turn in range(longest) for queue in queues if turn < len(queue)]


def _middle(contender: Contender) -> float:
    return contender.values[len(contender.values) // 2]


def _value_beyond(contender: Contender, jobs: list[RaceJob], results: Results) -> float | None:
    """Return the next value beyond the best end of a sweep; None if unknown or not needed.

    If all runs diverged, the sweep continues downwards.
    """
    if _is_missing(jobs, results) or contender.ratio <= 1:
        return None
    values = sorted(job.value for job in jobs)
    scores = {job.value: results[job.name].score for job in jobs}
    # A failure for another reason, such as a full disk, says nothing about the direction.
    if any(results[job.name].state == "failed" for job in jobs):
        return None
    finished = [value for value in values if math.isfinite(scores[value])]
    # Divergence comes from rates that are too high, so without a finished run go down.
    best = min(finished, key=lambda value: scores[value]) if finished else values[0]
    if best == values[0]:
        beyond = best / contender.ratio
    elif best == values[-1]:
        beyond = best * contender.ratio
    else:
        return None
    # Four digits, as in the plan, because the value is part of the name of the run folder.
    return float(f"{beyond:.4g}") if contender.least <= beyond <= contender.most else None


def _speeds(plan: RacePlan, contender: Contender, results: Results) -> list[float]:
    """Return the undisturbed seconds per step of every run at equal steps."""
    names = [f"steps-{contender.name}-seed{seed}" for seed in plan.seeds]
    spans = [results[name].fast_s_per_step for name in names if name in results]
    return [span for span in spans if math.isfinite(span)]


def _has_lost(plan: RacePlan, contender: Contender, results: Results) -> bool:
    """Return whether no run at equal steps finished, so that other lengths would add nothing."""
    names = [f"steps-{contender.name}-seed{seed}" for seed in plan.seeds]
    return not any(name in results and results[name].state == "finished" for name in names)


def _cost(plan: RacePlan, contender: Contender, paces: dict[str, Result]) -> tuple[float, float]:
    """Return the fixed seconds of all runs of a contender, and the seconds per step of a run."""
    pace, usual = paces[contender.name], paces[plan.baseline.name]
    s_per_step = pace.s_per_step if math.isfinite(pace.s_per_step) else usual.s_per_step
    if not math.isfinite(s_per_step):
        raise ConfigError(f"{contender.name} cannot train: {pace.reason}")
    # The very first run also computes the features, so the fastest start predicts the later ones.
    start_s = min(
        max(0.0, result.wall_s - PACE_STEPS * result.s_per_step - result.validation_s)
        for result in paces.values()
        if math.isfinite(result.s_per_step)
    )
    likely = min(_LIKELY_EXTENSIONS, plan.most_extensions)
    num_sweeps = len(contender.values) + likely if len(contender.values) > 1 else 0
    ratio = s_per_step / usual.s_per_step if math.isfinite(usual.s_per_step) else 1.0
    is_alike = is_equally_fast(ratio)
    num_races = len(plan.seeds) * (1 if is_alike else 2)
    fixed_s = num_sweeps * (start_s + _SWEEP_VALIDATIONS * pace.validation_s)
    fixed_s += num_races * (start_s + plan.num_validations * pace.validation_s)
    # A sweep run has 1 / SWEEP_SHARE of the steps; a run at equal seconds costs what the baseline's
    # does.
    per_step_s = num_sweeps * s_per_step / SWEEP_SHARE + len(plan.seeds) * s_per_step
    if not is_alike:
        per_step_s += len(plan.seeds) * s_per_step / ratio
    return fixed_s, per_step_s

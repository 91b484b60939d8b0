"""Return a running or finished race as plain JSON values for display."""

from dataclasses import asdict

from trainer.config.resolve import find_optimizer
from trainer.core.child_process import last_error
from trainer.core.errors import ConfigError
from trainer.core.types import finite
from trainer.race.jobs import (
    RaceJob,
    Results,
    chosen_value,
    find_steps,
    known_jobs,
    sweep_jobs,
)
from trainer.race.plan import Contender, RacePlan
from trainer.race.queue import Race
from trainer.race.report import CLOCKS, make_report, runs_of

FILES = ("race.md", "race.csv", "results.json", "race.png")
"""The files of a finished race that can be downloaded."""


def view_race(race: Race) -> dict[str, object]:
    """Return the state, the progress, all curves so far and, at the end, the report."""
    plan, status, results = race.plan, race.status(), race.results()
    values: dict[str, object] = asdict(status) | {
        "name": race.name,
        "about": _about(plan),
        "entrants": [_contender(plan, contender, results) for contender in plan.entrants],
        "files": files_of(race),
        "report": None,
    }
    values["steps"] = _steps(plan, results)
    jobs = [job for job in _jobs(plan, results) if job.name == status.current]
    values["running"] = _running(race, jobs[0]) if jobs else None
    # A process that died left its reason in the log only.
    if status.state == "stopped" and not status.problem:
        values["problem"] = last_error(race.folder / "log.txt")
    if status.state == "finished":
        report = make_report(plan, results)
        values["report"] = {
            "rows": [asdict(row) for row in report.rows],
            "verdict": report.verdict,
            "caveats": report.caveats,
        }
    # Browsers reject NaN in JSON, and one diverged run would leave the page empty.
    return finite(values)


def files_of(race: Race) -> list[str]:
    """List the files that exist so far; they appear shortly after the end of a race."""
    return [name for name in FILES if (race.folder / name).is_file()]


def _steps(plan: RacePlan, results: Results) -> int | None:
    """Return the steps of a run; None until they are known."""
    try:
        return find_steps(plan, results)
    # The minutes turn into steps only after the timing runs; until then results are missing.
    except (ConfigError, KeyError):
        return None


def _jobs(plan: RacePlan, results: Results) -> list[RaceJob]:
    try:
        return known_jobs(plan, results)
    # The status already shows this problem, so the curves so far are shown without jobs.
    except ConfigError:
        return []


def _about(plan: RacePlan) -> dict[str, object]:
    config = plan.config
    return {
        "family": config.family.name,
        "base": config.base,
        "clips": config.data.train_csv or config.data.train_data,
        "batch_size": config.training.batch_size * config.training.accumulate,
        "seeds": list(plan.seeds),
        "minutes": plan.minutes,
        "most_steps": plan.steps,
        "schedule": config.schedule.name,
        "optimizations": sorted(config.optimizations),
    }


def _contender(plan: RacePlan, contender: Contender, results: Results) -> dict[str, object]:
    # Sweep runs have a share of these steps, so no sweep job exists before they are known.
    steps = _steps(plan, results)
    tried = sweep_jobs(plan, contender, steps, results) if steps is not None else []
    value = chosen_value(plan, contender, results) if steps is not None else None
    # A sweep that is still running may change its best value, so it is not shown yet.
    is_swept = all(job.name in results for job in tried)
    return {
        "name": contender.name,
        "label": find_optimizer(contender.optimizer.name).label,
        "knob": contender.knob,
        "value": value if is_swept else None,
        "sweep": [
            [job.value, results[job.name].score, results[job.name].state]
            for job in sorted(tried, key=lambda job: job.value)
            if job.name in results
        ],
        "runs": [
            _curve(name, clock, results)
            for clock in CLOCKS
            for name in runs_of(plan, contender, clock)
            if name in results
        ],
    }


def _curve(name: str, clock: str, results: Results) -> dict[str, object]:
    result = results[name]
    return {
        "clock": clock,
        "state": result.state,
        "reason": result.reason,
        "steps": list(result.steps),
        "seconds": list(result.seconds),
        "losses": list(result.losses),
        "s_per_step": result.s_per_step,
    }


def _running(race: Race, job: RaceJob) -> dict[str, object]:
    """Return the progress of the current run."""
    run = race.run_of(job)
    # A run that is still starting has no log yet and is shown at step 0.
    step = run.series().last_step if run.events.path.is_file() else 0
    words = {"pace": "timing", "sweep": "trying a rate", "steps": "equal steps"}
    return {
        "entrant": job.entrant.name,
        "value": job.value,
        "seed": job.seed,
        "step": step,
        "steps": job.steps,
        "what": words.get(job.clock, "equal seconds"),
    }

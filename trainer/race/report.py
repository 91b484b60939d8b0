"""The report of a race: rows, Markdown, CSV, and JSON with every curve."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from statistics import mean, median

from trainer.core.types import finite
from trainer.race.jobs import (
    RaceJob,
    Results,
    chosen_value,
    find_steps,
    is_equally_fast,
    known_jobs,
    steps_for_seconds,
    sweep_jobs,
)
from trainer.race.plan import Contender, RacePlan
from trainer.race.seed_variance import estimate_seed_variance
from trainer.race.verdict import Comparison, compare, describe_limits, headline, noise_between_seeds

CLOCKS = ("steps", "seconds")


@dataclass(frozen=True)
class RaceRow:
    """One contender's row of the table; losses are means over seeds."""

    entrant: str
    options: str
    knob: str
    value: float | None
    steps: int
    loss_at_steps: float | None
    at_steps: str
    steps_for_seconds: int
    loss_at_seconds: float | None
    at_seconds: str
    s_per_step: float | None
    optimizer_share: float | None
    peak_memory_gib: float | None
    diverged: str
    sweep_runs: int
    sweep_s: float


@dataclass(frozen=True)
class Report:
    """A finished race: one row per contender, every comparison, and the verdict in sentences."""

    rows: list[RaceRow]
    comparisons: list[Comparison]
    verdict: list[str]
    caveats: list[str]


def make_report(plan: RacePlan, results: Results) -> Report:
    """Return the report of a race whose runs have all ended."""
    steps = find_steps(plan, results)
    lengths = steps_for_seconds(plan, steps, results)
    comparisons = [one for clock in CLOCKS for one in _compare_all(plan, clock, results)]
    # The headlines come first, because the picture shows only the first two sentences.
    verdict = [headline(comparisons, clock) for clock in CLOCKS]
    verdict += [comparison.text for comparison in comparisons]
    rows = [
        _row(plan, contender, steps, lengths[contender.name], comparisons, results)
        for contender in plan.entrants
    ]
    return Report(rows, comparisons, verdict, _caveats(plan, steps, lengths, results))


def _compare_all(plan: RacePlan, clock: str, results: Results) -> list[Comparison]:
    scores = {
        contender.name: scores_of(plan, contender, clock, results) for contender in plan.entrants
    }
    # One estimate per clock: runs of another length vary by another amount.
    seed_variance, usual = estimate_seed_variance(scores), plan.baseline.name
    rivals = [contender.name for contender in plan.entrants[1:]]
    return [
        compare(
            rival, usual, clock, scores[rival], scores[usual],
            num_rivals=len(rivals), seed_variance=seed_variance,
        )
        for rival in rivals
    ]  # fmt: skip


def scores_of(
    plan: RacePlan, contender: Contender, clock: str, results: Results
) -> dict[int, float]:
    """Return a contender's final losses by seed; runs at equal steps serve both clocks if possible.

    A loss is NaN if the run diverged. Runs that failed for another reason are left out, because
    they say nothing about the optimizer.
    """
    # Without a rate that trains there are no race runs; that counts as losing every seed, not as
    # unknown.
    if _diverged_everywhere(plan, contender, results):
        return dict.fromkeys(plan.seeds, math.nan)
    # Runs at equal steps stand in for equal seconds only if no runs of another length are due:
    # otherwise they had too much or too little time.
    clocks = (clock,) if _has_own_runs(plan, contender, clock, results) else (clock, "steps")
    found = {}
    for seed in plan.seeds:
        names = [f"{name}-{contender.name}-seed{seed}" for name in clocks]
        result = next((results[name] for name in names if name in results), None)
        # A failed run, on a full disk for example, would otherwise count as a divergence.
        if result is not None and result.state != "failed":
            found[seed] = result.score
    return found


def _has_own_runs(plan: RacePlan, contender: Contender, clock: str, results: Results) -> bool:
    """Return whether a clock needs runs of another length, so that equal steps can't serve it.

    A contender without a finished run at equal steps gets none: it would lose at any length.
    """
    ended = [results[name] for name in runs_of(plan, contender, "steps") if name in results]
    if clock != "seconds" or not any(result.state == "finished" for result in ended):
        return False
    steps = find_steps(plan, results)
    return steps_for_seconds(plan, steps, results)[contender.name] != steps


def runs_of(plan: RacePlan, contender: Contender, clock: str) -> list[str]:
    """Return the names of a contender's runs for a clock, one per seed."""
    return [f"{clock}-{contender.name}-seed{seed}" for seed in plan.seeds]


def to_markdown(report: Report) -> str:
    """Return the verdict, the table and the caveats as Markdown."""
    head = (
        "| optimizer | rate | loss, equal steps | | loss, equal seconds | | s/step "
        "| optimizer's share | memory (GiB) | diverged | sweep |\n" + "|---" * 11 + "|\n"
    )
    lines = []
    for row in report.rows:
        share = f"{100 * row.optimizer_share:.1f} %" if row.optimizer_share is not None else "-"
        cells = [
            f"{row.entrant}{f' ({row.options})' if row.options else ''}",
            f"{row.knob} {_number(row.value)}",
            f"{_number(row.loss_at_steps)} ({row.steps} steps)",
            row.at_steps,
            f"{_number(row.loss_at_seconds)} ({row.steps_for_seconds} steps)",
            row.at_seconds,
            _number(row.s_per_step),
            share,
            _number(row.peak_memory_gib),
            row.diverged,
            f"{row.sweep_runs} runs, {row.sweep_s:.0f} s",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    verdict = "\n".join(f"- {sentence}" for sentence in report.verdict)
    caveats = "\n".join(f"- {sentence}" for sentence in report.caveats)
    table = head + "\n".join(lines)
    return f"{verdict}\n\n{table}\n\nLimitations:\n\n{caveats}\n"


def to_csv(report: Report) -> str:
    """Return CSV with one row per contender."""
    target = io.StringIO()
    rows = [asdict(row) for row in report.rows]
    # The csv module ends lines with \r\n by default.
    writer = csv.DictWriter(target, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return target.getvalue()


def to_json(plan: RacePlan, results: Results, report: Report, facts: Mapping[str, object]) -> str:
    """Return everything as JSON: plan, machine, all curves, rows, comparisons and verdict."""
    values = {
        "verdict": report.verdict,
        "caveats": report.caveats,
        "rows": [asdict(row) for row in report.rows],
        "comparisons": [asdict(comparison) for comparison in report.comparisons],
        "machine": dict(facts),
        "plan": plan.to_json(),
        "runs": {name: asdict(result) for name, result in results.items()},
    }
    return json.dumps(finite(values), indent=1, ensure_ascii=False) + "\n"


def _row(
    plan: RacePlan,
    contender: Contender,
    steps: int,
    length: int,
    comparisons: list[Comparison],
    results: Results,
) -> RaceRow:
    ended = [results[name] for name in runs_of(plan, contender, "steps") if name in results]
    words = {c.clock: _cell(c) for c in comparisons if c.rival == contender.name}
    sweep = sweep_jobs(plan, contender, steps, results)
    # Speed and memory come from the runs at equal steps, which every contender has.
    s_per_step = _mean([result.s_per_step for result in ended])
    spent = _mean([r.optimizer_s for r in ended if r.optimizer_s is not None])
    lost = [result for result in ended if result.state == "diverged"]
    return RaceRow(
        entrant=contender.name,
        options=", ".join(f"{key} {value}" for key, value in contender.optimizer.options.items()),
        knob=contender.knob,
        value=chosen_value(plan, contender, results),
        steps=steps,
        loss_at_steps=_mean(scores_of(plan, contender, "steps", results).values()),
        at_steps=words.get("steps", "baseline"),
        steps_for_seconds=length,
        loss_at_seconds=_mean(scores_of(plan, contender, "seconds", results).values()),
        at_seconds=words.get("seconds", "baseline"),
        s_per_step=s_per_step,
        # The timing hooks report nothing on devices other than CPU and CUDA.
        optimizer_share=spent / s_per_step if spent and s_per_step else None,
        # The highest seed, not the mean: a run needs a GPU that holds its worst step.
        peak_memory_gib=max(_known(result.peak_memory_gib for result in ended), default=None),
        diverged=f"{len(lost)} of {len(ended)}",
        sweep_runs=len(sweep),
        sweep_s=sum(results[job.name].wall_s for job in sweep if job.name in results),
    )


def _cell(comparison: Comparison) -> str:
    values = (comparison.difference, comparison.low, comparison.high)
    # A contender that diverged or has too few runs has no interval to show.
    if any(value is None for value in values):
        return comparison.outcome
    middle, low, high = (f"{value:+.4f}" for value in values)
    return f"{comparison.outcome}: {middle} [{low}, {high}]"


def _caveats(plan: RacePlan, steps: int, lengths: dict[str, int], results: Results) -> list[str]:
    caveats = [
        describe_limits(len(plan.seeds), len(plan.entrants)),
        *_seed_variance_caveats(plan, results),
    ]
    caveats += _sweep_caveats(plan, steps)
    for contender in plan.entrants:
        caveats += _contender_caveats(plan, contender, steps, results)
    caveats += _uneven_speeds(plan, results)
    for seed in plan.seeds:
        # All runs of a seed start from the same weights and the same first batch, so their first
        # losses must agree to the last digit.
        first = {results[name].first_loss for name in _of_seed(plan, seed) if name in results}
        first = {loss for loss in first if math.isfinite(loss)}
        if len(first) > 1:
            caveats.append(
                f"With seed {seed} the first losses differ ({min(first):.6g} to {max(first):.6g}), "
                "so weights or data were not the same."
            )
    # States which runs serve both clocks, since the two columns then show the same loss.
    alike = [name for name, length in lengths.items() if length == steps]
    caveats.append(
        f"Step times of {', '.join(alike)} are equal within 10 % or within the machine's "
        "variation, so their runs at equal steps also count as equal seconds. Every run completes "
        "its schedule."
    )
    return caveats


def _seed_variance_caveats(plan: RacePlan, results: Results) -> list[str]:
    """Return how much runs vary from seed to seed, and how that was estimated."""
    scores = {
        contender.name: scores_of(plan, contender, "steps", results) for contender in plan.entrants
    }
    usual = scores[plan.baseline.name]
    noise, seed_variance = noise_between_seeds(usual), estimate_seed_variance(scores)
    if noise is None:
        return []
    name = plan.baseline.name
    told = [f"{name}'s final loss varies by {noise:.4f} between seeds (standard deviation)."]
    if seed_variance is None or name not in seed_variance.variances:
        return told
    deviations = sorted(math.sqrt(value) for value in seed_variance.variances.values())
    level = _mean(usual.values()) or math.nan
    share = 100 * median(deviations) / abs(level)
    return [
        *told,
        f"Without the effect that a seed has on all optimizers alike, runs vary by {share:.1f} % "
        f"of the loss (median; {deviations[0]:.4f} to {deviations[-1]:.4f}). The intervals pool "
        "the variation of all optimizers; none counts as less variable than its own runs show.",
    ]


def _sweep_caveats(plan: RacePlan, steps: int) -> list[str]:
    """Return what the sweeps leave open."""
    if all(len(contender.values) == 1 for contender in plan.entrants):
        return []
    return [
        f"Rates were chosen by one run of {plan.sweep_steps_for(steps)} steps each; the best rate "
        "for short runs may be too high or too low for longer ones. Weight decay and all other "
        "options were not swept; they have their given or default values."
    ]


def _contender_caveats(
    plan: RacePlan, contender: Contender, steps: int, results: Results
) -> list[str]:
    caveats = []
    jobs = [job for job in known_jobs(plan, results) if job.name in results]
    names = [job.name for job in jobs if job.entrant == contender]
    failed = [results[name].reason for name in names if results[name].state == "failed"]
    if failed:
        caveats.append(f"{contender.name} failed in {len(failed)} runs: {failed[0]}")
    value = chosen_value(plan, contender, results)
    if value is None:
        caveats.append(f"{contender.name} has no runs: it diverged or failed at every rate tried.")
    tried = sorted(job.value for job in sweep_jobs(plan, contender, steps, results))
    # An extended sweep ends here only if it reached its limits or a run failed.
    if value is not None and tried and value in (tried[0], tried[-1]):
        caveats.append(
            f"{contender.name}'s best {contender.knob}, {value:g}, is at an end of the range "
            "tried; a "
            "better value may lie beyond."
        )
    if len(contender.values) == 1:
        caveats.append(
            f"{contender.name} ran with {contender.knob} {contender.values[0]:g}, not swept."
        )
    return caveats


def _uneven_speeds(plan: RacePlan, results: Results) -> list[str]:
    """Return a caveat about contenders whose step times varied between runs with the same work."""
    uneven = []
    for contender in plan.entrants:
        names = [name for name in runs_of(plan, contender, "steps") if name in results]
        spans = _known(results[name].s_per_step for name in names)
        # All seeds do the same work, so a spread beyond timing noise comes from other programs.
        if spans and not is_equally_fast(max(spans) / min(spans)):
            uneven.append(f"{contender.name} {min(spans):.3g} to {max(spans):.3g} s")
    if not uneven:
        return []
    return [
        f"The same steps took longer in some runs ({'; '.join(uneven)}): the machine was doing "
        "other work, so times in seconds are imprecise."
    ]


def _diverged_everywhere(plan: RacePlan, contender: Contender, results: Results) -> bool:
    sweep = sweep_jobs(plan, contender, find_steps(plan, results), results)
    # A contender with a single rate has no sweep; its own runs then show whether it diverges.
    return bool(sweep) and all(results[job.name].state == "diverged" for job in sweep)


def _of_seed(plan: RacePlan, seed: int) -> list[str]:
    return [f"steps-{contender.name}-seed{seed}" for contender in plan.entrants]


def _mean(values: Iterable[float]) -> float | None:
    finite = _known(values)
    return mean(finite) if finite else None


def _known(values: Iterable[float]) -> list[float]:
    """Drop non-finite values, which stand for what a run that failed early does not have."""
    return [value for value in values if math.isfinite(value)]


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"


def budget(plan: RacePlan, results: Results) -> dict[str, float]:
    """Return the seconds that each part of a race took, including start-up and validation."""
    jobs: list[RaceJob] = known_jobs(plan, results)
    spent: dict[str, float] = {}
    for job in jobs:
        if job.name in results:
            spent[job.clock] = spent.get(job.clock, 0.0) + results[job.name].wall_s
    return spent

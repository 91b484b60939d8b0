"""Draw a race as four charts: loss over steps, loss over seconds, sweeps, seconds per step."""

from pathlib import Path
from statistics import median
from textwrap import wrap
from typing import TYPE_CHECKING

from trainer.core.errors import MissingDependency
from trainer.race.jobs import Results, find_steps, sweep_jobs
from trainer.race.plan import RacePlan
from trainer.race.report import Report, runs_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_HIGHEST = 3.0
"""Curves are cut off above this multiple of the median loss; chosen by hand."""
# The palette of Okabe and Ito, which people with colour blindness can tell apart, with a purple of
# more contrast and a grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#A1457B", "#E69F00", "#56B4E9", "#000000", "#7F7F7F")

_FEW = len(_COLOURS)
"""With more contenders than this, one legend beside the charts replaces the one in each chart."""


def draw_race(plan: RacePlan, results: Results, report: Report, path: Path) -> None:
    """Write the picture of a finished race as PNG.

    Raises:
        MissingDependency: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependency("matplotlib", "The picture of a race") from None
    figure = Figure(figsize=(12, 8), layout="constrained")
    by_steps, by_seconds, sweep, speed = figure.subplots(2, 2).flat
    _draw_curves(by_steps, plan, results, clock="steps", against="steps")
    by_steps.set(title="Equal steps", xlabel="Step", ylabel="Validation loss")
    _draw_curves(by_seconds, plan, results, clock="seconds", against="seconds")
    by_seconds.set(title="Equal seconds", xlabel="Seconds of training", ylabel="Validation loss")
    _draw_sweeps(sweep, plan, results)
    _draw_speed(speed, report)
    if len(plan.entrants) <= _FEW:
        by_steps.legend(frameon=False)
    else:
        handles, labels = by_steps.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=8)
    # Figures do not wrap a title; 130 characters of size 10 fit into 12 inches.
    title = "\n".join(line for said in report.verdict[:2] for line in wrap(said, 130))
    # Names may contain a dollar sign, which matplotlib would read as a formula.
    figure.suptitle(title, fontsize=10, parse_math=False)
    figure.savefig(path, dpi=120)


def _draw_curves(
    axes: "Axes", plan: RacePlan, results: Results, *, clock: str, against: str
) -> None:
    for index, contender in enumerate(plan.entrants):
        names = [name for name in runs_of(plan, contender, clock) if name in results]
        # Runs at equal steps stand in where both clocks mean the same runs.
        names = names or [name for name in runs_of(plan, contender, "steps") if name in results]
        for number, name in enumerate(names):
            result = results[name]
            style = "-" if result.state == "finished" else ":"
            label = contender.name if number == 0 else None
            axes.plot(
                getattr(result, against), result.losses, color=_colour(index), label=label,
                linewidth=1.2, marker=_marker(index), markersize=5, linestyle=style,
            )  # fmt: skip
    _show_finished(axes, results)
    _tidy(axes)


def _show_finished(axes: "Axes", results: Results) -> None:
    """Fit the axis to the losses of finished runs; diverged runs may leave the chart."""
    ended = [result for name, result in results.items() if name.startswith(("steps-", "seconds-"))]
    losses = [loss for result in ended if result.state == "finished" for loss in result.losses]
    if losses:
        # A run with a temporary spike would otherwise flatten all other curves.
        losses = [loss for loss in losses if loss <= _HIGHEST * median(losses)]
        margin = 0.05 * (max(losses) - min(losses)) or 0.05
        axes.set_ylim(min(losses) - margin, max(losses) + margin)


def _draw_sweeps(axes: "Axes", plan: RacePlan, results: Results) -> None:
    steps = find_steps(plan, results)
    for index, contender in enumerate(plan.entrants):
        jobs = sorted(sweep_jobs(plan, contender, steps, results), key=lambda job: job.value)
        scores = [results[job.name].score for job in jobs]
        if jobs:
            label = f"{contender.name}, {contender.knob}"
            values = [job.value for job in jobs]
            style = {"color": _colour(index), "marker": _marker(index), "markersize": 5}
            axes.plot(values, scores, label=label, **style)
    axes.set(title="Sweeps", xlabel="Value tried", ylabel="Validation loss", xscale="log")
    if axes.lines and len(plan.entrants) <= _FEW:
        axes.legend(frameon=False)
    _tidy(axes)


def _draw_speed(axes: "Axes", report: Report) -> None:
    names = [row.entrant for row in report.rows]
    whole = [row.s_per_step or 0.0 for row in report.rows]
    optimizer = [(row.s_per_step or 0.0) * (row.optimizer_share or 0.0) for row in report.rows]
    axes.barh(names, whole, color="#C8C8C8", label="step")
    axes.barh(names, optimizer, color=_COLOURS[1], label="of which optimizer")
    # Horizontal bars start at the bottom; the baseline belongs at the top, as in the table.
    axes.invert_yaxis()
    axes.set(title="Seconds per step", xlabel="Seconds")
    axes.legend(frameon=False)
    _tidy(axes)


def _tidy(axes: "Axes") -> None:
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _marker(index: int) -> str:
    """Return a marker that distinguishes contenders of the same colour."""
    return ".xs^"[index // len(_COLOURS) % 4]


def _colour(index: int) -> str:
    return _COLOURS[index % len(_COLOURS)]

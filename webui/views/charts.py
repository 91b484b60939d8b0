"""Draw a run's curves as an image to download; the live charts are drawn in the browser."""

import io
from collections.abc import Mapping

import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainer.core.metrics import (
    LR,
    MEMORY_GIB,
    METRICS,
    S_PER_STEP,
    TRAIN_LOSS,
    VAL_LOSS,
    is_val,
)
from trainer.runs.metric_store import MetricStore
from trainer.runs.points import Points, thin

_BLUE, _ORANGE, _GREEN, _PURPLE = "#0072B2", "#D55E00", "#009E73", "#A1457B"
_LINES = ((_BLUE, "-"), (_ORANGE, "--"), (_GREEN, ":"), (_PURPLE, "-."), ("#3d3d4f", "--"),
          ("#882255", ":"))  # fmt: skip
_MOST = 2000  # Points per curve; more than an image of 11 inches at 130 dpi can show.
_SMOOTHING = 0.9  # The default of the smoothing slider on the page.


def draw_curves(name: str, series: MetricStore, kind: str) -> bytes:
    """Plot loss, learning rate, seconds per step and memory; `kind` is `png` or `svg`."""
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    figure.suptitle(name, parse_math=False)
    grid = figure.add_gridspec(2, 3, height_ratios=(2, 1))
    loss = figure.add_subplot(grid[0, :])
    _plot(loss, series.steps, TRAIN_LOSS, METRICS[TRAIN_LOSS].title, _BLUE)
    _plot(loss, series.validations, VAL_LOSS, METRICS[VAL_LOSS].title, _ORANGE, marker="o")
    loss.set_ylabel("Loss")
    if loss.lines:
        loss.legend(frameon=False)
    small = {LR: _GREEN, S_PER_STEP: _PURPLE, MEMORY_GIB: _ORANGE}
    for column, (metric, colour) in enumerate(small.items()):
        label = METRICS[metric].title
        axes = figure.add_subplot(grid[1, column])
        _plot(axes, series.steps, metric, label, colour)
        axes.set_title(label, fontsize=10)
    return _save(figure, kind)


def draw_comparison(runs: Mapping[str, MetricStore], metric: str, kind: str) -> bytes:
    """Plot a registered metric for several runs; `kind` is `png` or `svg`."""
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(METRICS[metric].title)
    marker = "o" if is_val(metric) else ""
    for (name, series), (colour, dashes) in zip(runs.items(), _LINES, strict=False):
        points = series.validations if marker else series.steps
        # Matplotlib reads a dollar sign as math and hides labels that start with an underscore.
        label = " " + name.replace("$", r"\$")
        _plot(axes, points, metric, label, colour, marker, dashes)
        if not marker:
            _smooth_last(axes)
    if axes.lines:
        axes.legend(frameon=False)
    return _save(figure, kind)


def _smooth_last(axes: Axes) -> None:
    """Draw the debiased moving average over the last line and fade the line itself."""
    if not axes.lines:
        return
    line = axes.lines[-1]
    steps, values = line.get_xdata(), pandas.Series(line.get_ydata())
    average = values.ewm(alpha=1 - _SMOOTHING, ignore_na=True).mean()
    look = {"color": line.get_color(), "linestyle": line.get_linestyle(), "linewidth": 1.8}
    axes.plot(steps, average, label=line.get_label(), **look)
    line.set(alpha=0.2, linestyle="-", label="_raw")


def _save(figure: Figure, kind: str) -> bytes:
    target = io.BytesIO()
    figure.savefig(target, format=kind, dpi=130)
    return target.getvalue()


def _plot(
    axes: Axes,
    points: Points,
    metric: str,
    label: str,
    colour: str,
    marker: str = "",
    dashes: str = "-",
) -> None:
    axes.set_xlabel("Step")
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if not points.count or metric not in points.columns:
        return
    steps, values = points.array("step"), points.array(metric)
    rows = thin([values], _MOST)
    look = {"color": colour, "linewidth": 1.3, "marker": marker, "linestyle": dashes}
    axes.plot(steps[rows], values[rows], label=label, **look)

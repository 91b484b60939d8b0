"""Charts: a run's curves as a picture to download; the live charts are drawn in the browser."""

import io

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from trainer.series import Points, RunSeries, thin

_BLUE, _ORANGE, _GREEN, _PURPLE = "#0072B2", "#D55E00", "#009E73", "#A1457B"
_MOST = 2000


def draw_curves(name: str, series: RunSeries, kind: str) -> bytes:
    """Draw loss, learning rate, seconds per step and memory; `kind` is `png` or `svg`."""
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    figure.suptitle(name, parse_math=False)
    grid = figure.add_gridspec(2, 3, height_ratios=(2, 1))
    loss = figure.add_subplot(grid[0, :])
    _plot(loss, series.steps, "train/loss", "Train loss", _BLUE)
    _plot(loss, series.validations, "val/loss", "Eval loss", _ORANGE, marker="o")
    loss.set_ylabel("Loss")
    if loss.lines:
        loss.legend(frameon=False)
    small = (
        ("train/lr", "Learning rate", _GREEN),
        ("perf/s_per_step", "Seconds per step", _PURPLE),
        ("perf/memory_gib", "Memory (GiB)", _ORANGE),
    )
    for column, (metric, label, colour) in enumerate(small):
        axes = figure.add_subplot(grid[1, column])
        _plot(axes, series.steps, metric, label, colour)
        axes.set_title(label, fontsize=10)
    target = io.BytesIO()
    figure.savefig(target, format=kind, dpi=130)
    return target.getvalue()


def _plot(
    axes: Axes, points: Points, metric: str, label: str, colour: str, marker: str = ""
) -> None:
    axes.set_xlabel("Step")
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if not points.count or metric not in points.columns:
        return
    steps, values = points.array("step"), points.array(metric)
    rows = thin([values], _MOST)
    axes.plot(steps[rows], values[rows], color=colour, label=label, linewidth=1.3, marker=marker)

"""Register every metric of a run: its name, label, unit, digits, direction, chart and smoothing.

A new metric is one line here. The loop writes it, and the log, the command line, the live page,
comparisons and pictures show it as this table says. Besides these names there are metrics that
a family names itself: the parts of a loss and the measures of a validation (`train_part`,
`val_part`, `val_measure`).
"""

from dataclasses import asdict, dataclass

TRAIN, VAL, PERF = "train/", "val/", "perf/"
"""What the name of a metric starts with: training, validation, or speed and memory."""


@dataclass(frozen=True)
class Metric:
    """How one metric is shown.

    `digits` counts significant digits. `lower_is_better` is None where neither direction is good.
    `chart` names the chart of the Live tab that draws it, and `tile` puts its latest value above
    the charts. `smoothed` offers the smoothing slider. `compared` lists it in comparisons.
    """

    name: str
    label: str
    unit: str = ""
    digits: int = 3
    lower_is_better: bool | None = None
    chart: str = ""
    tile: bool = False
    smoothed: bool = False
    compared: bool = False

    @property
    def title(self) -> str:
        """The label with its unit, such as `Memory (GiB)`, for an axis or a table's head."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    @property
    def newest_only(self) -> bool:
        """Whether the page shows only its latest values, so it need not load all of them."""
        return not self.compared and self.chart in ("", "breakdown")


METRICS: dict[str, Metric] = {}
"""All metrics by name, in the order in which the page shows them."""


def _register(metric: Metric) -> str:
    METRICS[metric.name] = metric
    return metric.name


# fmt: off
TRAIN_LOSS = _register(Metric(
    "train/loss", "Train loss", digits=4, lower_is_better=True, chart="loss",
    tile=True, smoothed=True, compared=True,
))
VAL_LOSS = _register(Metric(
    "val/loss", "Eval loss", digits=4, lower_is_better=True, chart="loss",
    tile=True, compared=True,
))
S_PER_STEP = _register(Metric(
    "perf/s_per_step", "Seconds per step", lower_is_better=True, chart="seconds",
    tile=True, smoothed=True, compared=True,
))
AUDIO_S_PER_S = _register(Metric(
    "perf/audio_s_per_s", "Audio", "x real time", lower_is_better=False, tile=True,
))
LR = _register(Metric("train/lr", "Learning rate", chart="lr", tile=True, compared=True))
LR_SCHEDULED = _register(Metric("train/lr_scheduled", "Scheduled learning rate"))
GRAD_NORM = _register(Metric(
    "train/grad_norm", "Gradient norm", chart="norm", tile=True, smoothed=True, compared=True,
))
MEMORY_GIB = _register(Metric(
    "perf/memory_gib", "Memory", "GiB", lower_is_better=True, chart="memory",
    tile=True, compared=True,
))
MEMORY_RESERVED_GIB = _register(Metric(
    "perf/memory_reserved_gib", "Reserved memory", "GiB", lower_is_better=True, chart="memory",
))
MEMORY_PEAK_GIB = _register(Metric(
    "perf/memory_peak_gib", "Peak memory", "GiB", lower_is_better=True, chart="memory",
))
UTILISATION_PERCENT = _register(Metric("perf/utilisation_percent", "Busy", "%", tile=True))
TEMPERATURE_C = _register(Metric("perf/temperature_c", "Temperature", "°C"))
HOST_MEMORY_GIB = _register(Metric(
    "perf/host_memory_gib", "Host memory", "GiB", lower_is_better=True, chart="memory", tile=True,
))
EPOCH = _register(Metric("train/epoch", "Epoch", tile=True))
CPU_S_PER_STEP = _register(Metric(
    "perf/cpu_s_per_step", "CPU seconds per step", lower_is_better=True,
))
DATA_WAIT_S = _register(Metric(
    "perf/data_wait_s", "Waiting for data", "s", lower_is_better=True, chart="breakdown",
))
FORWARD_S = _register(Metric(
    "perf/forward_s", "Forward", "s", lower_is_better=True, chart="breakdown",
))
BACKWARD_S = _register(Metric(
    "perf/backward_s", "Backward", "s", lower_is_better=True, chart="breakdown",
))
OPTIMIZER_S = _register(Metric(
    "perf/optimizer_s", "Optimizer", "s", lower_is_better=True, chart="breakdown",
))
# fmt: on


def train_part(name: str) -> str:
    """Return the metric of one part of the training loss."""
    return f"{TRAIN_LOSS}/{name}"


def val_part(name: str) -> str:
    """Return the metric of one part of the validation loss."""
    return f"{VAL_LOSS}/{name}"


def val_measure(name: str) -> str:
    """Return the metric of a measure that a family takes on the validation clips."""
    return f"{VAL}{name}"


def is_val(name: str) -> bool:
    """Whether a metric is measured at validations, not at every step."""
    return name.startswith(VAL)


def describe_metric(name: str) -> Metric:
    """Return how a metric is shown; one that a family named itself is labelled by that name."""
    known = METRICS.get(name)
    if known is not None:
        return known
    for whole in (TRAIN_LOSS, VAL_LOSS):  # a part of a loss is read like the loss
        if name.startswith(f"{whole}/"):
            part = name.removeprefix(f"{whole}/")
            return Metric(name, f"{METRICS[whole].label}: {part}", digits=4, lower_is_better=True)
    return Metric(name, name.removeprefix(VAL))


def metrics_of(chart: str) -> list[str]:
    """Return the metrics that a chart draws, in order."""
    return [metric.name for metric in METRICS.values() if metric.chart == chart]


def describe_metrics() -> list[dict[str, str | int | bool | None]]:
    """Return the table as JSON values for the page's scripts, in the order of the page."""
    return [asdict(metric) | {"title": metric.title} for metric in METRICS.values()]

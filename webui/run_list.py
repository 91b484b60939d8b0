"""Build one row per run for the run table; runs that are not training are read once."""

import contextlib
import math
import statistics
import threading
from pathlib import Path
from typing import Any

from trainer.config.resolve import find_family
from trainer.core.errors import RunNotFound, TimbreError
from trainer.core.run_config import RunConfig
from trainer.runs.metric_store import MetricStore
from trainer.runs.run import Run, RunStatus
from trainer.runs.run_store import RunStore
from webui.status import describe


class RunList:
    """The rows of the run table, cached by the size and modification time of each event log."""

    def __init__(self, library: RunStore) -> None:
        self._library = library
        self._rows: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def rows(self, most: int | None = None) -> list[dict[str, Any]]:
        """Return a row for each run, newest first; an unreadable run gets a row with the reason."""
        found = []
        for name in self._library.names()[:most]:
            with contextlib.suppress(RunNotFound):  # moved to the trash since it was listed
                found.append(self.row(name))
        return found

    def active(self) -> list[dict[str, Any]]:
        """Return the state of every run that is training now.

        The page polls this once a second during training, so the cost must not grow with the
        number of steps.
        """
        found = []
        for name in self._library.names():
            if self._known(name):
                continue
            try:
                status = self._library.get(name).status(self._library.series(name))
            except TimbreError:
                continue
            if status.is_active:
                found.append(describe(status))
            else:
                self.row(name)
        return found

    def row(self, name: str) -> dict[str, Any]:
        """Return the row of one run."""
        known = self._known(name)
        if known is not None:
            return known
        run = self._library.get(name)
        version = _version(run)
        try:
            series = self._library.series(name)
            status = run.status(series)
            row = _row(status, series, run.config)
        except RunNotFound:
            raise
        except TimbreError as error:
            return _unreadable(name, str(error))
        with self._lock:
            if status.is_active:
                self._rows.pop(name, None)
            else:
                self._rows[name] = (version, row)
        return row

    def _known(self, name: str) -> dict[str, Any] | None:
        """Return the cached row, or None if the run has changed since."""
        with self._lock:
            version, row = self._rows.get(name, (None, None))
        run = Run(self._library.folder / name)
        return row if row is not None and version == _version(run) and not run.is_owned() else None


def dataset_name(config: RunConfig) -> str:
    """Return a short name for a run's dataset: the folder and file name of its list."""
    path = Path(config.data.train_csv or config.data.train_data)
    return f"{path.parent.name}/{path.name}" if path.parent.name else path.name


def _version(run: Run) -> tuple[int, int]:
    try:
        facts = run.events.path.stat()
    except FileNotFoundError:
        return 0, 0
    try:
        spawned_at = (run.folder / "control" / "spawned.json").stat().st_mtime_ns
    except FileNotFoundError:
        spawned_at = 0
    return facts.st_size, facts.st_mtime_ns + spawned_at


def _row(status: RunStatus, series: MetricStore, config: RunConfig) -> dict[str, Any]:
    return describe(status) | {
        "best_eval": _lowest(series, "val/loss"),
        "median_s_per_step": _median(series, "perf/s_per_step"),
        "peak_memory_gib": _highest(series, ("perf/memory_peak_gib", "perf/memory_gib")),
        "dataset": dataset_name(config),
        "family": config.family.name,
        "optimizer": config.optimizer.name,
        "optimizations": sorted(config.optimizations),
        "bf16": find_family(config.family.name).publish is not None,
    }


def _unreadable(name: str, reason: str) -> dict[str, Any]:
    state = {"name": name, "state": "unreadable", "symbol": "x", "active": False, "actions": []}
    return state | {"reason": reason, "remedy": "", "step": 0, "total_steps": 0, "percent": 0}


def _values(series: MetricStore, name: str) -> list[float]:
    columns = series.validations.columns if name.startswith("val/") else series.steps.columns
    return [value for value in columns.get(name, ()) if math.isfinite(value)]


def _lowest(series: MetricStore, name: str) -> float | None:
    return min(_values(series, name), default=None)


def _highest(series: MetricStore, names: tuple[str, ...]) -> float | None:
    return max((value for name in names for value in _values(series, name)), default=None)


def _median(series: MetricStore, name: str) -> float | None:
    values = _values(series, name)
    return statistics.median(values) if values else None

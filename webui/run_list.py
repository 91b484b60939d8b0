"""Build one row per run for the run table; what does not change is read once."""

import contextlib
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np

from trainer.config.resolve import find_family
from trainer.core import metrics
from trainer.core.atomic_io import write_atomic
from trainer.core.errors import RunNotFound, TimbreError
from trainer.core.run_config import RunConfig
from trainer.runs.metric_store import MetricStore
from trainer.runs.run import Run
from trainer.runs.run_store import RunStore
from trainer.runs.status import RunStatus
from webui.status import Row, describe

Version = tuple[int, int]
"""Size and times of the files that change with a run; equal means that nothing happened."""
Figures = dict[str, float | None]
"""What the table shows of a run and only a whole log tells."""


class RunList:
    """The rows of the run table, cached by the size and modification time of each event log."""

    def __init__(self, library: RunStore) -> None:
        self._library = library
        self._rows: dict[str, tuple[Version, Row]] = {}
        self._idle: dict[str, Version] = {}
        # Kept on disk: a server that starts beside a thousand long runs reads none of their logs.
        self._path = library.folder / ".page" / "figures.json"
        self._figures = _read_figures(self._path)
        self._is_kept = True
        self._lock = threading.Lock()

    def rows(self, most: int | None = None) -> list[Row]:
        """Return a row for each run, newest first; an unreadable run gets a row with the reason."""
        found, names = [], self._library.names()
        for name in names[:most]:
            with contextlib.suppress(RunNotFound):  # moved to the trash since it was listed
                found.append(self.row(name))
        self._keep_figures(names)
        return found

    def active(self) -> list[Row]:
        """Return the state of every run that is training now.

        The page polls this once a second during training: no log is read but the end of one that
        has grown, and of a run that nobody owns and that did not change only the files' dates.
        """
        found = []
        for name in self._library.names():
            run = Run(self._library.folder / name)
            version = _version(run)
            if self._idle.get(name) == version and not run.is_owned():
                continue
            if not run.may_be_active():
                self._idle[name] = version
                continue
            try:
                status = self._library.status(name)
            except TimbreError:
                continue
            if status.is_active:
                found.append(describe(status))
        return found

    def row(self, name: str) -> Row:
        """Return the row of one run."""
        run = self._library.get(name)
        version = _version(run)
        with self._lock:
            known, row = self._rows.get(name, (None, None))
        if row is not None and known == version and not run.is_owned():
            return row
        try:
            status, store = self._library.look_at(name)
            if status.is_active:
                store = self._library.series(name)  # kept, so the next look reads what is new
            row = _row(status, self._figures_of(run, store, version), run.config)
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

    def _figures_of(self, run: Run, store: MetricStore, version: Version) -> Figures:
        if store.is_whole:
            return _figures(store)
        known, figures = self._figures.get(run.name, (None, None))
        if figures is None or known != version:
            figures = _figures(run.series())  # not kept: no page may ever open it
            self._figures[run.name], self._is_kept = (version, figures), False
        return figures

    def _keep_figures(self, names: list[str]) -> None:
        """Store the figures of the runs that exist, if any of them are new."""
        if self._is_kept:
            return
        existing = {name: self._figures[name] for name in names if name in self._figures}
        with contextlib.suppress(OSError):  # they can be read from the logs again
            self._path.parent.mkdir(exist_ok=True)
            write_atomic(self._path, json.dumps(existing))
            self._is_kept = True


def dataset_name(config: RunConfig) -> str:
    """Return a short name for a run's dataset: the folder and file name of its list."""
    path = Path(config.data.train_csv or config.data.train_data)
    return f"{path.parent.name}/{path.name}" if path.parent.name else path.name


def _version(run: Run) -> Version:
    try:
        facts = run.events.path.stat()
    except FileNotFoundError:
        return 0, 0
    try:
        spawned_at = (run.folder / "control" / "spawned.json").stat().st_mtime_ns
    except FileNotFoundError:
        spawned_at = 0
    return facts.st_size, facts.st_mtime_ns + spawned_at


def _row(status: RunStatus, figures: Figures, config: RunConfig) -> Row:
    return (
        describe(status)
        | figures
        | {
            "dataset": dataset_name(config),
            "family": config.family.name,
            "optimizer": config.optimizer.name,
            "optimizations": sorted(config.optimizations),
            "bf16": find_family(config.family.name).publish is not None,
        }
    )


def _unreadable(name: str, reason: str) -> Row:
    state = {"name": name, "state": "unreadable", "symbol": "x", "active": False, "actions": []}
    return state | {"reason": reason, "remedy": "", "step": 0, "total_steps": 0, "percent": 0}


def _figures(series: MetricStore) -> Figures:
    """Return what the table shows of a run and only its whole log tells."""
    losses = series.validations.finite(metrics.VAL_LOSS)
    seconds = series.steps.finite(metrics.S_PER_STEP)
    memory = np.concatenate([
        series.steps.finite(name) for name in (metrics.MEMORY_PEAK_GIB, metrics.MEMORY_GIB)
    ])  # fmt: skip
    return {
        "best_eval": float(losses.min()) if losses.size else None,
        "median_s_per_step": float(np.median(seconds)) if seconds.size else None,
        "peak_memory_gib": float(memory.max()) if memory.size else None,
    }


def _read_figures(path: Path) -> dict[str, tuple[Version, Figures]]:
    """Return the figures that an earlier server kept; a damaged file counts as none."""
    with contextlib.suppress(
        OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError
    ):
        values = json.loads(path.read_text(encoding="utf-8"))
        return {
            str(name): ((int(size), int(changed)), _checked(figures))
            for name, ((size, changed), figures) in values.items()
        }
    return {}


def _checked(figures: dict[str, Any]) -> Figures:
    return {
        name: None if figures[name] is None else float(figures[name])
        for name in ("best_eval", "median_s_per_step", "peak_memory_gib")
    }

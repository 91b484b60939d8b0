"""Measurements: what `measure` found on this machine, kept in the cache and read again."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.config import RunConfig
from trainer.data.cache import default_cache_folder
from trainer.errors import ConfigError

FORMAT = 1
_ALIKE = 0.01
"""Models whose numbers of parameters differ by less take as long."""
_MOST_SCALED = 2.0
"""Beyond this ratio of FLOPs, time is no longer taken as proportional to them."""


@dataclass
class Row:
    """One line of the ladder: a set of optimizations and what a step with them took.

    `changes` is laid over the configuration of the ladder, as its JSON. `plain_flops` are those of
    the row's real positions in the plain graph, which recomputes nothing.
    `cpu_s_per_step` is the processor time of all threads, which other programs disturb less.
    States: done, refused (cannot be used here), failed, deadline (took too long), skipped (no time
    was left), cancelled. Numbers that were not measured are None.
    """

    name: str
    label: str
    groups: list[str]
    boxes: dict[str, dict[str, Any]]
    state: str = "skipped"
    reason: str = ""
    s_per_step: float | None = None
    s_p10: float | None = None
    s_p90: float | None = None
    steps: int = 0
    warm_up: int = 0
    cpu_s_per_step: float | None = None
    optimizer_s: float | None = None
    peak_gib: float | None = None
    peak_is: str = ""
    reserved_gib: float | None = None
    resident_gib: float | None = None
    predicted_gib: float | None = None
    loss: float | None = None
    loss_after: int = 0
    loss_drift: float | None = None
    positions: float | None = None
    padded_ratio: float | None = None
    flops: float | None = None
    plain_flops: float | None = None
    mfu: float | None = None
    parameters: int | None = None
    trained: int | None = None
    start_s: float | None = None
    on: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether it was measured."""
        return self.state == "done" and self.s_per_step is not None


@dataclass
class Measurement:
    """A ladder on one machine. States: running, finished, cancelled."""

    command: str
    machine: dict[str, Any]
    model: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    state: str = "running"
    made_at: str = ""
    seconds: float = 0.0

    def row(self, name: str) -> Row | None:
        """Return a row by name."""
        return next((row for row in self.rows if row.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `from_json` reads back."""
        return {"format": FORMAT} | asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Measurement":
        """Build a measurement from JSON values.

        Raises:
            ConfigError: it was made by a newer version, or is none.
        """
        try:
            known = {name: value for name, value in values.items() if name != "format"}
            rows = [Row(**row) for row in known.pop("rows")]
            if values["format"] > FORMAT:
                raise ConfigError(
                    f"This measurement has format {values['format']}; this Timbre reads up to "
                    f"{FORMAT}. Update Timbre."
                )
            return Measurement(**known, rows=rows)
        except (KeyError, TypeError) as error:
            raise ConfigError(f"This is no measurement of Timbre: {error}.") from None


def kept_folder() -> Path:
    """Return where measurements of this machine are kept."""
    return default_cache_folder() / "measurements"


def keep(measurement: Measurement, path: Path) -> None:
    """Write a measurement whole, so that whoever reads it at that moment finds the old or new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}-{os.getpid()}")
    text = json.dumps(measurement.to_json(), indent=1, ensure_ascii=False)
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def new_path(family: str) -> Path:
    """Return a file name of now for a measurement of a family."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return kept_folder() / f"{stamp}-{family}-{os.getpid()}.json"


def list_kept() -> list[tuple[Path, Measurement]]:
    """Return the measurements of this machine, newest first; what cannot be read is left out."""
    found = []
    for path in sorted(kept_folder().glob("*.json"), reverse=True):
        try:
            found.append((path, read_kept(path)))
        except ConfigError:
            continue
    return found


def read_kept(path: Path) -> Measurement:
    """Read one measurement.

    Raises:
        ConfigError: it is not there or is none.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read as a measurement: {error}.") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is no measurement: it holds no JSON object.")
    return Measurement.from_json(values)


def s_per_step_of(
    config: RunConfig, *, machine: str, parameters: int, trained: int, flops: float
) -> tuple[float, str] | None:
    """Return the seconds of a step as measured on this machine, and from what; None if unknown.

    Only a row of the same family, model size, optimizer and optimizations tells. Its time without
    the optimizer is scaled by the FLOPs of a micro-step, within a factor of two.
    """
    for path, measurement in list_kept():
        about = measurement.model
        is_alike = (
            measurement.machine.get("device") == machine
            and about.get("family") == config.family.name
            and about.get("optimizer") == config.optimizer.name
        )
        for row in measurement.rows if is_alike else []:
            is_like = row.boxes == config.optimizations and not row.changes
            if not (row.is_done and row.flops and is_like):
                continue
            ratio = flops / row.flops
            pairs = ((row.parameters or 0, parameters), (row.trained or 0, trained))
            # A letter more in the table of symbols is no other model.
            is_same = all(abs(a - b) <= _ALIKE * b for a, b in pairs)
            if is_same and 1 / _MOST_SCALED <= ratio <= _MOST_SCALED:
                assert row.s_per_step is not None
                optimizer_s = row.optimizer_s or 0.0
                micro_s = (row.s_per_step - optimizer_s) * ratio
                seconds = micro_s * config.training.accumulate + optimizer_s
                return seconds, f"{row.label}, measured {measurement.made_at} ({path.name})"
    return None

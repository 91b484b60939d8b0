"""Store and look up the results of `measure` on this machine, kept in the cache folder."""

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from trainer.core.atomic_io import write_atomic
from trainer.core.errors import ConfigError
from trainer.core.run_config import RunConfig
from trainer.data.features.cache import default_cache_folder

FORMAT = 1
ByName: TypeAlias = dict[str, dict[str, Any]]
"""Options of optimizations, or values of parts of a configuration, by name as in run.json."""
_ALIKE = 0.01
"""Parameter counts within 1 % count as the same model: a larger symbol table changes no timing."""
_MOST_SCALED = 2.0
"""Largest FLOP ratio over which step time is scaled linearly (chosen by hand, not measured)."""


@dataclass
class Trial:
    """One trial of the benchmark: a set of optimizations and how long a step took with them.

    `changes` overrides the benchmark's configuration, as JSON. `plain_flops` counts the trial's
    real positions in the unmodified graph, without recomputation.
    `cpu_s_per_step` is the CPU time of all threads, which other programs disturb less.
    States: done, refused (cannot be used here), failed, deadline (took too long), skipped (no time
    left), cancelled. Values that were not measured are None.
    """

    name: str
    label: str
    groups: list[str]
    boxes: ByName
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
    on: ByName = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    changes: ByName = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether the trial finished and has a step time."""
        return self.state == "done" and self.s_per_step is not None


@dataclass
class Measurement:
    """All trials of one benchmark on one machine. States: running, finished, cancelled."""

    command: str
    machine: dict[str, object]
    model: dict[str, object]
    rows: list[Trial] = field(default_factory=list)
    state: str = "running"
    made_at: str = ""
    seconds: float = 0.0

    def trial(self, name: str) -> Trial | None:
        """Return the trial with this name, or None."""
        return next((row for row in self.rows if row.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values that `from_json` reads back."""
        return {"format": FORMAT} | asdict(self)

    @staticmethod
    def from_json(values: dict[str, Any]) -> "Measurement":
        """Build a measurement from JSON values.

        Raises:
            ConfigError: it was written by a newer version, or is not a measurement.
        """
        try:
            known = {name: value for name, value in values.items() if name != "format"}
            rows = [Trial(**row) for row in known.pop("rows")]
            # Older formats stay readable; a newer one may mean other things by the same names.
            if values["format"] > FORMAT:
                raise ConfigError(
                    f"This measurement has format {values['format']}; this Timbre reads up to "
                    f"{FORMAT}. Update Timbre."
                )
            return Measurement(**known, rows=rows)
        except (KeyError, TypeError) as error:
            raise ConfigError(
                f"This file is not a Timbre measurement ({error}). Choose one that 'measure' wrote."
            ) from None


def kept_folder() -> Path:
    """Return the folder that holds this machine's measurements."""
    return default_cache_folder() / "measurements"


def keep(measurement: Measurement, path: Path) -> None:
    """Write a measurement atomically; a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(measurement.to_json(), indent=1, ensure_ascii=False)
    write_atomic(path, text + "\n")


def new_path(family: str) -> Path:
    """Return a time-stamped path for a new measurement of a model family."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return kept_folder() / f"{stamp}-{family}-{os.getpid()}.json"


def list_kept() -> list[tuple[Path, Measurement]]:
    """Return this machine's measurements, newest first, skipping unreadable files."""
    found = []
    # Names start with a time stamp, so their order is the order in time.
    for path in sorted(kept_folder().glob("*.json"), reverse=True):
        try:
            found.append((path, read_kept(path)))
        # One damaged or newer file must not hide all other measurements.
        except ConfigError:
            continue
    return found


def read_kept(path: Path) -> Measurement:
    """Read one measurement.

    Raises:
        ConfigError: the file is missing, unreadable or not a measurement.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} cannot be read as a measurement: {error}. Choose a file that 'measure' wrote."
        ) from None
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} is not a measurement: it must hold a JSON object. Choose one that 'measure' "
            "wrote."
        )
    return Measurement.from_json(values)


def s_per_step_of(
    config: RunConfig, *, machine: str, parameters: int, trained: int, flops: float
) -> tuple[float, str] | None:
    """Estimate the seconds of a step from a measurement on this machine, and name its source.

    Only a trial with the same family, model size, optimizer and optimizations counts. Its time
    without the optimizer is scaled by the FLOPs of a micro-step, within a factor of two.

    Args:
        machine: device name as the measurement recorded it.
        parameters: all parameters of the model.
        trained: parameters that the run trains.
        flops: FLOPs of one micro-step.

    Returns:
        Seconds and a description of the source, or None if nothing comparable was measured.
    """
    for path, measurement in list_kept():
        about = measurement.model
        # A step on another GPU or with another optimizer says nothing about this one.
        is_alike = (
            measurement.machine.get("device") == machine
            and about.get("family") == config.family.name
            and about.get("optimizer") == config.optimizer.name
        )
        for row in measurement.rows if is_alike else []:
            # Trials with `changes` (another batch size, for example) are not comparable.
            is_like = row.boxes == config.optimizations and not row.changes
            if not (row.is_done and row.flops and is_like):
                continue
            ratio = flops / row.flops
            # LoRA has nearly all parameters in common with full training but trains few of them, so
            # both counts must agree.
            pairs = ((row.parameters or 0, parameters), (row.trained or 0, trained))
            is_same = all(abs(a - b) <= _ALIKE * b for a, b in pairs)
            if is_same and 1 / _MOST_SCALED <= ratio <= _MOST_SCALED:
                assert row.s_per_step is not None
                # The optimizer runs once a step however large the batch, so it isn't scaled.
                optimizer_s = row.optimizer_s or 0.0
                micro_s = (row.s_per_step - optimizer_s) * ratio
                seconds = micro_s * config.training.accumulate + optimizer_s
                return seconds, f"{row.label}, measured {measurement.made_at} ({path.name})"
    return None

"""The folder of a run: its configuration, its event log, its checkpoints and previews."""

import json
import os
import re
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from trainer.core.atomic_io import is_leftover, sync, write_atomic
from trainer.core.errors import RunExists, RunNotFound
from trainer.core.events import EventLog, OptionsChanged, PlanChanged, RunAdapted, read_blocks
from trainer.core.run_config import WRITTEN_BY, RunConfig, merge_values, read_config
from trainer.core.version import __version__
from trainer.runs.control import chosen_processes
from trainer.runs.log_index import read_newest, read_newest_of
from trainer.runs.metric_store import MetricStore
from trainer.runs.process import STARTING_GRACE_S

# Names that Windows reserves for devices, with any extension; a folder shared with Windows must not
# have them either.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|(?:com|lpt)\d)(?:\.|$)", re.I)
_FOLDERS = ("control", "checkpoints", "previews")
_LOG_TAIL_BYTES = 64_000  # 200 lines of usual length; the log may have 16 MiB
FIRST_STEPS = 100
"""Logged steps that the check for an unstable start looks at, also after a resume."""
REPEATED_STEPS = 20
"""Logged steps after the newest checkpoint, which a resume repeats and is compared with."""

Columns = Mapping[str, Sequence[float]]
"""Metrics of some logged steps by name, and their `step`."""


@dataclass(frozen=True)
class Snapshot:
    """A run as it is before a start: `run.json` and the event log, each read once.

    `config` is the configuration in effect; `plan` and `adapted` are what earlier processes
    changed. `first_steps` holds the metrics of the first steps of the run, `repeated` those of the
    steps after the newest checkpoint, which a resume trains again. `offset` is where the log ended.
    """

    config: RunConfig
    num_processes: int
    last_step: int
    plan: PlanChanged | None
    adapted: RunAdapted | None
    first_steps: Columns
    repeated: Columns
    offset: int


@dataclass(frozen=True)
class CheckpointInfo:
    """A published checkpoint: its step, folder, whether it is the best, and its val metrics."""

    step: int
    folder: Path
    best: bool
    metrics: dict[str, float]


class RunFolder:
    """The files of one run; everything that is known about it can be rebuilt from them."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder).absolute()
        self.name = self.folder.name
        self.events = EventLog(self.folder / "events.jsonl")

    @classmethod
    def create(cls, folder: Path | str, config: RunConfig) -> Self:
        """Create a new run folder.

        Raises:
            RunExists: the folder exists already; a run is never overwritten.
        """
        run = cls(Path(folder))
        try:
            run.folder.mkdir(parents=True)  # the mkdir decides which of two creators wins
        except FileExistsError:
            if not _is_half_made(run.folder):
                raise RunExists(
                    f"The folder {run.folder} exists already. A run is never overwritten: use "
                    f"another name or continue it with: python -m trainer resume {run.folder}"
                ) from None
        for name in _FOLDERS:
            (run.folder / name).mkdir(exist_ok=True)
        # run.json comes last: it makes the folder a run, and every run has a log.
        run.events.path.touch()
        values = config.to_json() | {WRITTEN_BY: __version__}
        text = json.dumps(values, indent=2, ensure_ascii=False)
        write_atomic(run.folder / "run.json", text + "\n")
        sync(run.folder.parent)  # or a power loss may leave no entry for the new folder
        return run

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open an existing run folder.

        Raises:
            RunNotFound: the folder holds no run.
        """
        run = cls(Path(folder))
        if not (run.folder / "run.json").is_file():
            raise RunNotFound(
                f"{run.folder} holds no run (it has no run.json). Use the folder of a run or start "
                "one with: python -m trainer train --run DIR ..."
            )
        return run

    @property
    def config(self) -> RunConfig:
        """The configuration the run was created with; it never changes."""
        return read_config(self.folder / "run.json")

    @property
    def current_config(self) -> RunConfig:
        """The configuration in effect: `config` plus the options changed at resumes."""
        return _config_in_effect(self.config, self.newest().changes)

    def checkpoints(self) -> list[CheckpointInfo]:
        """List the published checkpoints, oldest first, without verifying their contents."""
        found = []
        for folder in sorted((self.folder / "checkpoints").glob("step-*")):
            try:
                values = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
                step, best = int(values["step"]), bool(values.get("best", False))
                found.append(CheckpointInfo(step, folder, best, values.get("metrics", {})))
            # Not published yet, pruned meanwhile, or damaged.
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
        # An older one may still be marked; only the newest best counts.
        best_step = max((info.step for info in found if info.best), default=None)
        return [replace(info, best=info.step == best_step) for info in found]

    def previews(self) -> list[Path]:
        """List the preview files, oldest first, without links that lead out of the run."""
        home = self.folder.resolve()
        files = (self.folder / "previews").glob("*.*")
        inside = (path for path in files if path.resolve().is_relative_to(home))
        return sorted(path for path in inside if path.suffix in (".wav", ".svg"))

    def log_tail(self, lines: int = 200) -> str:
        """Return the last lines of the process's log."""
        try:
            with (self.folder / "log.txt").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
                text = file.read().decode("utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def series(self) -> MetricStore:
        """Read all metric columns from the event log."""
        series = MetricStore(self.events)
        series.update()
        return series

    def newest(self) -> MetricStore:
        """Read the latest facts and the newest rows; the time does not depend on the log's size."""
        return read_newest(self.events)

    def snapshot(self, known: Snapshot | None = None) -> Snapshot:
        """Read once what a start has to know; `known` is returned if nothing was logged since.

        Raises:
            ConfigError: `run.json`, or a change of its options, is damaged.
        """
        if known is not None and known.offset == self.events.size:
            return known
        config = read_config(self.folder / "run.json")
        checkpoint = max((info.step for info in self.checkpoints()), default=0)
        first, repeated = MetricStore(self.events), MetricStore(self.events)
        with self.events.open() as file:
            newest, index = read_newest_of(self.events, file)
            first.read(read_blocks(file, 0), until=FIRST_STEPS)
            begin = index.begin_of(checkpoint + 1)
            repeated.read(read_blocks(file, begin), until=checkpoint + REPEATED_STEPS)
        config = _config_in_effect(config, newest.changes)
        return Snapshot(
            config=config,
            num_processes=chosen_processes(self.folder) or config.training.num_processes,
            last_step=newest.last_step,
            plan=newest.plan,
            adapted=newest.adapted,
            first_steps=first.steps.columns,
            repeated=repeated.steps.columns,
            offset=newest.offset,
        )


def _config_in_effect(config: RunConfig, changes: Sequence[OptionsChanged]) -> RunConfig:
    """Return the configuration of a run with the options that were changed at its resumes."""
    if not changes:
        return config
    values = config.to_json()
    for change in changes:
        values = merge_values(values, change.values)
    return RunConfig.from_json(values)


def free_name(library: Path, wanted: str) -> str:
    """Return a folder name based on `wanted` that is valid on every system and not in use."""
    # NFC, because a letter with an accent can be typed as one character or as two.
    composed = unicodedata.normalize("NFC", wanted)
    # 60 characters, at most 4 bytes each, stay below the usual limit of 255 bytes per name.
    name = re.sub(r"[^\w.-]+", "-", composed, flags=re.UNICODE).strip("-. ")[:60] or "run"
    name = f"run-{name}" if _RESERVED.match(name) else name
    number, free = 1, name
    while (library / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


def _is_half_made(folder: Path) -> bool:
    """Return whether a crash left a folder that was about to become a run, a while ago."""
    made = (*_FOLDERS, "events.jsonl")
    found = list(folder.iterdir()) if folder.is_dir() else [folder]
    left = [path for path in found if not (path.name == "run.json.part" or is_leftover(path))]
    is_ours = all(path.name in made and not _holds_anything(path) for path in left)
    return is_ours and time.time() - folder.stat().st_mtime > STARTING_GRACE_S


def _holds_anything(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.stat().st_size > 0

"""Studio: what every tab of the page needs: the runs, the folders and the demo."""

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainer.config import DataConfig, RunConfig
from trainer.data.manifest import Manifest, Progress, no_progress, read_manifest
from trainer.entries import resolve, with_absolute_paths
from trainer.errors import DataError, TimbreError
from trainer.flags import refuse_missing_data
from trainer.library import RunLibrary
from trainer.measurements import list_kept
from trainer.paths import ASSETS
from trainer.presets import apply_preset
from trainer.runs import Run
from webui.errands import Errand
from webui.overview import Overview
from webui.races import Races

_RUNS_ASKED = 20
"""So many of the newest runs are asked how long a step takes; reading a long log costs seconds."""


@dataclass(frozen=True)
class Studio:
    """The runs, the races, their overview, and the folders that the page writes to.

    `rates` finds learning rates, `measuring` measures optimizations and `cutting` cuts recordings,
    in processes of their own.

    `scratch` holds files on their way to the browser (it is the server's working folder);
    `uploads` keeps the lists and clips that came from the browser; typed relative paths start at
    `home`.
    """

    library: RunLibrary
    scratch: Path
    uploads: Path
    home: Path
    overview: Overview = field(init=False)
    races: Races = field(init=False)
    rates: Errand = field(init=False)
    measuring: Errand = field(init=False)
    cutting: Errand = field(init=False)
    _manifests: dict[DataConfig, Manifest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        errands = self.library.folder / ".page" / "errands"
        parts = {
            "overview": Overview(self.library),
            "races": Races(self.library.folder / "races"),
            "rates": Errand(errands / "rates"),
            "measuring": Errand(errands / "measuring"),
            "cutting": Errand(errands / "cutting"),
        }
        for name, part in parts.items():
            object.__setattr__(self, name, part)

    def measurements(self) -> list[Path]:
        """List what has been measured on this machine, newest first."""
        return [path for path, _ in list_kept()]

    def s_per_step_like(self, config: RunConfig) -> float | None:
        """Return the median seconds a step took in the newest run with the same kind of steps.

        None if none of the newest `_RUNS_ASKED` runs on this machine did such steps.
        """
        wanted = _step_facts(config)
        for row in self.overview.rows(_RUNS_ASKED):
            if not row.get("median_s_per_step"):
                continue
            with suppress(TimbreError):
                if _step_facts(self.library.get(row["name"]).config) == wanted:
                    return row["median_s_per_step"]
        return None

    def start(self, wanted_name: str, config: RunConfig) -> Run:
        """Start a run under the wanted name, or under the next free one like it."""
        return self.library.start(wanted_name, config)

    def absolute(self, path: str) -> str:
        """Return a path a person typed as an absolute one; relative ones start at `home`."""
        return str((self.home / os.path.expanduser(path.strip())).absolute())

    def checked(self, config: RunConfig) -> RunConfig:
        """Return a configuration that can be started, with paths that hold from any folder.

        Raises:
            ConfigError: it names no clips, or something that no catalog holds.
        """
        config = self._with_absolute_paths(config)
        refuse_missing_data(config)
        resolve(config)
        return config

    def _with_absolute_paths(self, config: RunConfig) -> RunConfig:
        base = self.absolute(config.base) if config.base.strip() else ""
        config = config.with_values(data=self.absolute_data(config.data), base=base)
        return with_absolute_paths(config, self.absolute)

    def read_manifest(
        self, data: DataConfig, *, fresh: bool = False, progress: Progress = no_progress
    ) -> Manifest:
        """Read and check the clips; the ones read last are kept until a fresh look is asked for.

        Raises:
            DataError: a list is absent or cannot be read as rows at all.
        """
        data = self.absolute_data(data)
        if fresh or data not in self._manifests:
            self._manifests[data] = read_manifest(data, progress=progress)
            for stale in list(self._manifests)[:-4]:
                self._manifests.pop(stale, None)
        return self._manifests[data]

    def absolute_data(self, data: DataConfig) -> DataConfig:
        """Return the data with paths that hold from any folder."""
        names = ("train_csv", "eval_csv", "train_data")
        given = {name: getattr(data, name).strip() for name in names}
        return replace(
            data, **{name: self.absolute(path) if path else "" for name, path in given.items()}
        )


def _step_facts(config: RunConfig) -> tuple[Any, ...]:
    """Return what decides how long a step takes: the model, the clips, the batch, the options."""
    training, data = config.training, config.data
    parts = (config.family, config.optimizer, config.optimizations, config.base)
    sizes = (training.batch_size, training.accumulate, training.num_processes, training.device)
    return (*parts, *sizes, data.train_csv, data.train_data)


def demo_data() -> DataConfig:
    """Return the data of the demo voice."""
    demo = ASSETS / "demo"
    return DataConfig(
        train_csv=str(demo / "train.csv"), eval_csv=str(demo / "eval.csv"), language="en"
    )


def demo_config() -> RunConfig:
    """Return the demo run: the demo voice, the base checkpoint if there is one, a quick preset.

    Raises:
        DataError: the demo clips are not installed.
    """
    data = demo_data()
    if not Path(data.train_csv).is_file():
        raise DataError(
            f"The demo clips are not there ({data.train_csv}). Get the whole repository, or bring "
            "your own recordings under Data."
        )
    return apply_preset(RunConfig(data=data, base=demo_base()), "quick")


def demo_base() -> str:
    """Return the folder of the bundled base checkpoint, or an empty text."""
    base = ASSETS / "base"
    return str(base) if (base / "config.json").is_file() else ""

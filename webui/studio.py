"""Hold what all tabs share: the runs, background processes, folders and the demo."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trainer.config.cli_flags import refuse_missing_data
from trainer.config.presets import apply_preset
from trainer.config.resolve import resolve, with_absolute_paths
from trainer.core.child_process import PROJECT
from trainer.core.errors import DataError, TimbreError
from trainer.core.run_config import DataConfig, RunConfig, absolute_data
from trainer.data.lists.manifest import Manifest, Progress, no_progress, read_manifest
from trainer.profiling.measurements import list_kept
from trainer.runs.run import Run
from trainer.runs.run_store import RunStore
from webui.jobs.background_job import BackgroundJob
from webui.jobs.races import Races
from webui.run_list import RunList

# A wheel holds the same files, but names the folder timbre_assets, as `assets` would be anybody's.
_IN_SOURCE, _INSTALLED = PROJECT / "assets", PROJECT / "timbre_assets"
# The demo's list is in every copy of the assets and in no other project's folder of that name.
ASSETS = _IN_SOURCE if (_IN_SOURCE / "demo" / "train.csv").is_file() else _INSTALLED
_RUNS_ASKED = 20
"""So many of the newest runs are asked how long a step takes; reading a long log costs seconds."""


@dataclass(frozen=True)
class Studio:
    """The runs, the races, the run table, and the folders that the page writes to.

    `rates` finds learning rates, `measuring` benchmarks optimizations and `cutting` cuts
    recordings, each in its own process.

    `scratch` holds temporary files for the browser (it is the server's working folder); `uploads`
    keeps uploaded lists and clips; relative paths that users type start at `home`.
    """

    library: RunStore
    scratch: Path
    uploads: Path
    home: Path
    run_list: RunList = field(init=False)
    races: Races = field(init=False)
    rates: BackgroundJob = field(init=False)
    measuring: BackgroundJob = field(init=False)
    cutting: BackgroundJob = field(init=False)
    _manifests: dict[DataConfig, Manifest] = field(default_factory=dict)

    def __post_init__(self) -> None:
        jobs = self.library.folder / ".page" / "errands"
        parts = {
            "run_list": RunList(self.library),
            "races": Races(self.library.folder / "races"),
            "rates": BackgroundJob(jobs / "rates"),
            "measuring": BackgroundJob(jobs / "measuring"),
            "cutting": BackgroundJob(jobs / "cutting"),
        }
        for name, part in parts.items():
            object.__setattr__(self, name, part)

    def measurements(self) -> list[Path]:
        """List the benchmark results of this machine, newest first."""
        return [path for path, _ in list_kept()]

    def s_per_step_like(self, config: RunConfig) -> float | None:
        """Return the median seconds a step took in the newest run with the same kind of steps.

        None if none of the newest `_RUNS_ASKED` runs on this machine did such steps.
        """
        wanted = _step_facts(config)
        for row in self.run_list.rows(_RUNS_ASKED):
            if not row.get("median_s_per_step"):
                continue
            with suppress(TimbreError):
                if _step_facts(self.library.get(row["name"]).config) == wanted:
                    return row["median_s_per_step"]
        return None

    def start(self, wanted_name: str, config: RunConfig) -> Run:
        """Start a run under the given name, or a free variant of it."""
        return self.library.start(wanted_name, config)

    def absolute(self, path: str) -> str:
        """Make a typed path absolute; relative paths start at `home`."""
        return str((self.home / os.path.expanduser(path.strip())).absolute())

    def checked(self, config: RunConfig) -> RunConfig:
        """Validate a configuration and return it with absolute paths.

        Raises:
            ConfigError: it names no clips, or an unknown family, optimizer or optimization.
        """
        config = with_absolute_paths(config, self.absolute)
        refuse_missing_data(config)
        resolve(config)
        return config

    def read_manifest(
        self, data: DataConfig, *, fresh: bool = False, progress: Progress = no_progress
    ) -> Manifest:
        """Read and check the clips; recent results are cached unless `fresh` is true.

        Raises:
            DataError: a list does not exist or cannot be parsed.
        """
        data = self.absolute_data(data)
        if fresh or data not in self._manifests:
            self._manifests[data] = read_manifest(data, progress=progress)
            for stale in list(self._manifests)[:-4]:
                self._manifests.pop(stale, None)
        return self._manifests[data]

    def absolute_data(self, data: DataConfig) -> DataConfig:
        """Return the data settings with absolute paths."""
        return absolute_data(data, self.absolute)


def _step_facts(config: RunConfig) -> tuple[object, ...]:
    """Return what decides how long a step takes: the model, the clips, the batch, the options."""
    training, data = config.training, config.data
    parts = (config.family, config.optimizer, config.optimizations, config.base)
    sizes = (training.batch_size, training.accumulate, training.num_processes, training.device)
    return (*parts, *sizes, data.train_csv, data.train_data)


def demo_data() -> DataConfig:
    """Return the data settings of the demo voice."""
    demo = ASSETS / "demo"
    return DataConfig(
        train_csv=str(demo / "train.csv"), eval_csv=str(demo / "eval.csv"), language="en"
    )


def demo_config() -> RunConfig:
    """Return the config of the demo run: demo voice, bundled base checkpoint, quick preset.

    Raises:
        DataError: the demo clips are not installed.
    """
    data = demo_data()
    if not Path(data.train_csv).is_file():
        raise DataError(
            f"The demo clips are missing ({data.train_csv}). Clone the whole repository, or add "
            "your own recordings on the Data tab."
        )
    return apply_preset(RunConfig(data=data, base=demo_base()), "quick")


def demo_base() -> str:
    """Return the folder of the bundled base checkpoint, or an empty string."""
    base = ASSETS / "base"
    return str(base) if (base / "config.json").is_file() else ""

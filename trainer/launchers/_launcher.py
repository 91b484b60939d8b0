"""Define the interface of a launcher and the handle of a submitted run.

Wherever a run trains, its progress is in the event log in its folder, which must be on a disk that
all machines share. The handle only says how to query or cancel the job.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.core.atomic_io import write_atomic
from trainer.core.errors import ConfigError, RunNotFound
from trainer.runs.run import Run

_HANDLE = "launch.json"  # in the run's `control/` folder


@dataclass(frozen=True)
class Resources:
    """The resources that a run requests; `gpus` counts those of all machines together."""

    nodes: int = 1
    gpus: int = 1
    hours: float = 24.0
    cpus: int = 8
    memory_gib: int = 32
    partition: str = ""

    def __post_init__(self) -> None:
        # torchrun starts the same number of processes on every machine.
        if self.nodes < 1 or self.gpus % self.nodes:
            raise ConfigError(
                f"{self.gpus} GPUs cannot be divided evenly among {self.nodes} machines. Choose a "
                "number of GPUs that is a multiple of the number of machines."
            )

    @property
    def gpus_per_node(self) -> int:
        """GPUs, and so processes, on each machine."""
        return self.gpus // self.nodes


@dataclass(frozen=True)
class Handle:
    """Where a run was submitted: the launcher's name and the values it needs to find the job."""

    launcher: str
    values: dict[str, Any] = field(default_factory=dict)  # JSON; each launcher has its own keys

    def save(self, folder: Path) -> None:
        """Save the handle in a run's folder, replacing an earlier one."""
        write_atomic(folder / "control" / _HANDLE, json.dumps(asdict(self)))


def read_handle(folder: Path) -> Handle:
    """Return the handle saved in a run's folder.

    Raises:
        RunNotFound: the run was never submitted.
    """
    try:
        values = json.loads((folder / "control" / _HANDLE).read_text(encoding="utf-8"))
        return Handle(str(values["launcher"]), dict(values["values"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise RunNotFound(
            f"The run {folder.name} was not submitted. Submit it with: python -m trainer launch "
            f"--run {folder}"
        ) from None


@dataclass(frozen=True)
class Launcher:
    """A place to train; `status` returns `waiting`, `running`, `ended` or `unknown`.

    `submit` starts or queues a run and returns its handle; `cancel` asks a run to save and stop,
    or removes it from the queue; `attach` waits until it has ended.
    """

    name: str
    label: str
    submit: Callable[[Run, Resources], Handle]
    status: Callable[[Run, Handle], str]
    cancel: Callable[[Run, Handle], None]
    attach: Callable[[Run, Handle], None]

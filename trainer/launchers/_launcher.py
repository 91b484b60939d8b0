"""What a launcher must offer, and the handle that a run keeps of where it was sent.

Wherever it trains, the truth about a run is the event log in its folder, which all machines share;
a handle only says whom to ask whether it waits, and whom to tell that it is no longer wanted.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError, RunNotFound
from trainer.runs import Run

_HANDLE = "launch.json"


@dataclass(frozen=True)
class Resources:
    """What a run asks of a cluster; `gpus` are those of all machines together."""

    nodes: int = 1
    gpus: int = 1
    hours: float = 24.0
    cpus: int = 8
    memory_gib: int = 32
    partition: str = ""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.gpus % self.nodes:
            raise ConfigError(
                f"{self.gpus} GPUs cannot be shared evenly among {self.nodes} machines. Give as "
                "many GPUs as machines, or a multiple of that."
            )

    @property
    def gpus_per_node(self) -> int:
        """The processes on each machine."""
        return self.gpus // self.nodes


@dataclass(frozen=True)
class Handle:
    """Where a run was sent: the launcher's name, and what that needs to find it again."""

    launcher: str
    values: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Keep the handle in a run's folder, in place of an earlier one."""
        partial = folder / "control" / f"{_HANDLE}.part"
        partial.write_text(json.dumps(asdict(self)), encoding="utf-8")
        partial.replace(folder / "control" / _HANDLE)


def read_handle(folder: Path) -> Handle:
    """Return the handle that a run's folder holds.

    Raises:
        RunNotFound: the run was never sent anywhere.
    """
    try:
        values = json.loads((folder / "control" / _HANDLE).read_text(encoding="utf-8"))
        return Handle(str(values["launcher"]), dict(values["values"]))
    except (OSError, ValueError, KeyError, TypeError):
        raise RunNotFound(
            f"The run {folder.name} was not sent anywhere. Send it with: python -m trainer launch "
            f"--run {folder}"
        ) from None


@dataclass(frozen=True)
class Launcher:
    """A place to train. `status` is `waiting`, `running`, `ended` or `unknown`.

    `submit` sends a run and returns its handle; `cancel` asks it to save and stop, and takes it
    back where it still waits; `attach` waits until it has ended.
    """

    name: str
    label: str
    submit: Callable[[Run, Resources], Handle]
    status: Callable[[Run, Handle], str]
    cancel: Callable[[Run, Handle], None]
    attach: Callable[[Run, Handle], None]

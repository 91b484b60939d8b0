"""Run trainer commands as background processes that outlive the page, and read their output."""

import json
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from trainer.core.atomic_io import write_atomic
from trainer.core.child_process import (
    PROJECT,
    Child,
    child_environment,
    last_error,
    start_child,
    trainer_command,
)
from trainer.core.errors import RunError
from trainer.core.run_config import RunConfig


@dataclass
class BackgroundJob:
    """A trainer command that is running, or the last one of its kind, with its folder.

    `lines.jsonl` holds its standard output, `log.txt` its standard error, and `about.json` what
    was asked of it.
    """

    folder: Path
    _child: Child | None = field(default=None, repr=False)

    def start(self, argv: Sequence[str], about: Mapping[str, object]) -> None:
        """Start a command and overwrite the output of the previous one.

        Raises:
            RunError: the previous command is still running.
        """
        if self.is_running():
            raise RunError("This is already running. Wait until it finishes, or stop it first.")
        self.folder.mkdir(parents=True, exist_ok=True)
        with (
            (self.folder / "lines.jsonl").open("wb") as lines,
            (self.folder / "log.txt").open("wb") as log,
        ):
            self._child = start_child(
                trainer_command(*argv),
                output=lines,
                errors=log,
                lifetime="session",
                environment=child_environment(),
                folder=PROJECT,
            )
        values = {**about, "pid": self._child.pid, "started_at": time.time()}
        write_atomic(self.folder / "about.json", json.dumps(values))

    def about(self) -> dict[str, Any]:
        """Return what was asked, with the process id and start time; empty if never started."""
        try:
            return json.loads((self.folder / "about.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def is_running(self) -> bool:
        """Tell whether the process is alive, even after the page was restarted."""
        if self._child is not None:
            return self._child.poll() is None
        return self._process() is not None

    def stop(self) -> None:
        """Ask the process to end (SIGTERM)."""
        process = self._process()
        if process is not None:
            process.send_signal(signal.SIGTERM)

    def lines(self) -> list[dict[str, Any]]:
        """Return the JSON objects printed so far; a half-written line is skipped."""
        try:
            text = (self.folder / "lines.jsonl").read_text("utf-8", "replace")
        except OSError:
            return []
        found = []
        for line in text.splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [line for line in found if isinstance(line, dict)]

    def problem(self) -> str:
        """Return the error message that the command ended with; empty if it printed none."""
        return last_error(self.folder / "log.txt")

    def _process(self) -> psutil.Process | None:
        about = self.about()
        try:
            process = psutil.Process(about.get("pid", -1))
            # Process ids are reused; 5 s covers the delay between the fork and `started_at`.
            is_same = abs(process.create_time() - about["started_at"]) < 5
            is_alive = process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, ValueError):
            return None
        return process if is_same and is_alive else None


def write_config(config: RunConfig, path: Path) -> Path:
    """Write a configuration to a file for a child process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config.to_json(), ensure_ascii=False), encoding="utf-8")
    return path

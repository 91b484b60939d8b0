"""Errands: child processes of the trainer that outlive the page, and what they say line by line."""

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from trainer.config import RunConfig
from trainer.errors import RunError
from trainer.paths import PROJECT, child_environment
from webui.speaking import trainer_command


@dataclass
class Errand:
    """A command of the trainer under way, or the last one of its kind; a folder holds its words.

    `lines.jsonl` is what it says, `log.txt` its complaints, `about.json` what it was asked.
    """

    folder: Path
    _child: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def start(self, words: Sequence[str], about: dict[str, Any]) -> None:
        """Start a command; what the last one left is forgotten.

        Raises:
            RunError: the last one has not ended yet.
        """
        if self.is_running():
            raise RunError("This is under way already. Wait for it, or stop it first.")
        self.folder.mkdir(parents=True, exist_ok=True)
        with (
            (self.folder / "lines.jsonl").open("wb") as lines,
            (self.folder / "log.txt").open("wb") as log,
        ):
            self._child = subprocess.Popen(
                trainer_command(words),
                stdin=subprocess.DEVNULL,
                stdout=lines,
                stderr=log,
                start_new_session=True,
                env=child_environment(),
                cwd=PROJECT,
            )
        values = about | {"pid": self._child.pid, "started_at": time.time()}
        partial = self.folder / ".about.json"
        partial.write_text(json.dumps(values), encoding="utf-8")
        partial.replace(self.folder / "about.json")

    def about(self) -> dict[str, Any]:
        """Return what it was asked, with its process id and start; empty if it never was."""
        try:
            return json.loads((self.folder / "about.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def is_running(self) -> bool:
        """Whether its process lives; a restarted page asks the system."""
        if self._child is not None:
            return self._child.poll() is None
        return self._process() is not None

    def stop(self) -> None:
        """Ask its process to end."""
        process = self._process()
        if process is not None:
            process.send_signal(signal.SIGTERM)

    def lines(self) -> list[dict[str, Any]]:
        """Return what it has said so far; a line that is half written is left out."""
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
        """Return the sentence with which it gave up; empty if it said none."""
        return last_error(self.folder / "log.txt")

    def _process(self) -> psutil.Process | None:
        about = self.about()
        try:
            process = psutil.Process(about.get("pid", -1))
            is_same = abs(process.create_time() - about["started_at"]) < 5
            is_alive = process.status() != psutil.STATUS_ZOMBIE
        except (psutil.NoSuchProcess, ValueError):
            return None
        return process if is_same and is_alive else None


def last_error(path: Path) -> str:
    """Return the last sentence of a log that names an error."""
    try:
        lines = [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    errors = [line for line in lines if line.startswith("Error: ")]
    return errors[-1].removeprefix("Error: ") if errors else ""


def write_config(config: RunConfig, path: Path) -> Path:
    """Write the settings of the form for a child process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config.to_json(), ensure_ascii=False), encoding="utf-8")
    return path

"""The page in a process of its own; runs named `real...` and the demo are real, others fake it."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
DEMO_STEPS = 40
"""Of the demo, which trains for real here, only not as long."""
_STARTED = re.compile(r"Timbre runs at (http://\S+)")


@dataclass
class PageServer:
    """A running page: its address, its folder of runs, its process."""

    url: str
    runs: Path
    process: "subprocess.Popen[str]"

    def kill(self) -> None:
        """End the server without a chance to clean up, as a crash would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def restart(self) -> None:
        """Start the page again where it was."""
        port = int(self.url.rstrip("/").rsplit(":", 1)[1])
        self.process = start_page(self.runs, port=port).process

    def stop(self) -> None:
        """End the server as Ctrl+C does."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)


def start_page(runs: Path, *words: str, port: int = 0, token: bool = False) -> PageServer:
    """Start the page over a folder of runs and wait until it answers; `token`: it asks for one."""
    environment = os.environ | {
        "TIMBRE_POLL_MS": "100",
        "TIMBRE_CACHE": str(runs.parent / "cache"),
        "PYTHONPATH": str(PROJECT),
    }
    command = [sys.executable, __file__, "--runs", str(runs), "--no-browser", *words]
    command += [] if token else ["--no-token"]
    # The program looks for a free port itself, but two that start at once find the same one.
    command += ["--port", str(port or _any_port())]
    log = (runs.parent / "server.log").open("a", encoding="utf-8")
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=runs.parent
    )
    log.close()
    assert process.stdout is not None
    for line in process.stdout:
        started = _STARTED.search(line)
        if started:
            return PageServer(started[1], runs, process)
    said = (runs.parent / "server.log").read_text(encoding="utf-8")
    raise AssertionError(f"The page did not start:\n{said}")


def _any_port() -> int:
    with socket.socket() as candidate:
        candidate.bind(("127.0.0.1", 0))
        return candidate.getsockname()[1]


def _serve() -> None:
    import app
    from trainer.config import RunConfig
    from trainer.runs import Run
    from webui import speaking
    from webui.studio import demo_config
    from webui.tabs import start

    real_command = Run.command

    def command(run: Run) -> list[str]:
        if run.name.startswith(("real", "demo-voice")):
            return real_command(run)
        return [sys.executable, str(PROJECT / "tests" / "_fake_trainer.py"), str(run.folder)]

    def speak(words: Sequence[str]) -> list[str]:
        if "--stream" not in words or Path(words[1]).name.startswith("real"):
            return real_speak(words)
        return [sys.executable, str(PROJECT / "tests" / "_fake_speaker.py"), *words]

    def shorter_demo() -> RunConfig:
        config = demo_config()
        return replace(config, training=replace(config.training, steps=DEMO_STEPS))

    start.demo_config = shorter_demo
    real_speak = speaking.trainer_command
    Run.command = command  # type: ignore[method-assign]
    speaking.trainer_command = speak
    app.main()


if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))
    _serve()

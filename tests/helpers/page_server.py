"""The page in a process of its own; runs named `real...` and the demo are real, others fake it.

The demo is a small one, and memory and time are estimated but once: each takes a process of torch.
"""

import contextlib
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.core.run_config import DataConfig

PROJECT = Path(__file__).resolve().parent.parent.parent
DEMO_STEPS = 40
"""Of the demo, which trains for real here, only not as long."""
DEMO_CLIPS = {"train_csv": 24, "eval_csv": 6}
"""Of the demo: so few that no processes are started to compute their features."""
_STARTS = itertools.count()
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
        """End the server as a service manager does."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=300)


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
    """Return a free port that no connection takes as its own end, even while nobody listens there.

    The system takes those from 32768 on (Linux); a server that is killed and started again would
    find its port taken now and then. Processes begin at places of their own.
    """
    places = range(10_000, 32_000)
    for attempt in itertools.count(os.getpid() * 20 + next(_STARTS)):
        with socket.socket() as candidate, contextlib.suppress(OSError):
            candidate.bind(("127.0.0.1", places[attempt % len(places)]))
            return candidate.getsockname()[1]
    raise AssertionError


def _serve() -> None:
    import app
    from trainer.core.run_config import RunConfig
    from trainer.runs.run import Run
    from webui import studio
    from webui.jobs import synthesis
    from webui.studio import demo_config
    from webui.tabs import start, train, trials

    real_command = Run.command

    def command(run: Run) -> list[str]:
        if run.name.startswith(("real", "demo-voice")):
            return real_command(run)
        return [
            sys.executable,
            str(PROJECT / "tests" / "helpers" / "fake_trainer.py"),
            str(run.folder),
        ]

    def speak(*words: str) -> list[str]:
        if "--stream" not in words or Path(words[1]).name.startswith("real"):
            return real_speak(*words)
        return [sys.executable, str(PROJECT / "tests" / "helpers" / "fake_speaker.py"), *words]

    def shorter_demo() -> RunConfig:
        config = demo_config()
        return replace(config, training=replace(config.training, steps=DEMO_STEPS))

    def foresee_once(*asked: Any) -> dict[str, Any]:
        if not estimates:
            estimates.append(real_foresee(*asked))
        return estimates[0]

    estimates: list[dict[str, Any]] = []
    real_foresee, trials._run_estimate = trials._run_estimate, foresee_once
    demo = _small_demo(Path.cwd() / "demo", studio.demo_data())
    studio.demo_data = train.demo_data = lambda: demo
    start.demo_config = shorter_demo
    real_speak = synthesis.trainer_command
    Run.command = command  # type: ignore[method-assign]
    synthesis.trainer_command = speak
    app.main()


def _small_demo(folder: Path, whole: "DataConfig") -> "DataConfig":
    """Write lists of the first clips of the demo into a folder and return the data they name."""
    folder.mkdir(exist_ok=True)
    lists = {}
    for field, count in DEMO_CLIPS.items():
        source = Path(getattr(whole, field))
        head, *rows = source.read_text(encoding="utf-8").splitlines()
        lines = [head, *(f"{source.parent}/{row}" for row in rows[:count])]
        lists[field] = str(folder / source.name)
        Path(lists[field]).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return replace(whole, **lists)


if __name__ == "__main__":
    sys.path.insert(0, str(PROJECT))
    _serve()

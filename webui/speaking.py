"""Speaking: synthesis and export run in a short child process, never in the page's own."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer.errors import RunError
from trainer.runs import Run

_PROJECT = Path(__file__).resolve().parent.parent
_TIMEOUT_S = 300.0
_CHECKPOINT = re.compile(r"best|last|\d{1,12}")


def speak(run: Run, text: str, *, speaker: str, checkpoint: str, out: Path) -> Path:
    """Synthesise a sentence with a checkpoint of a run into a WAV file.

    Raises:
        RunError: the child's own sentence on why it could not.
    """
    check_name(checkpoint)
    words = [f"--text={text}", f"--out={out}", f"--checkpoint={checkpoint}"]
    if speaker:
        words.append(f"--speaker={speaker}")
    _run_trainer(["synthesize", str(run.folder), *words])
    return out


def export(run: Run, folder: Path, *, checkpoint: str = "best") -> Path:
    """Write the weights of a run into a new folder.

    Raises:
        RunError: the child's own sentence on why it could not.
    """
    check_name(checkpoint)
    _run_trainer(["export", str(run.folder), f"--out={folder}", f"--checkpoint={checkpoint}"])
    return folder


def check_name(checkpoint: str) -> None:
    """Raise RunError unless it names a checkpoint: best, last or a step."""
    if not _CHECKPOINT.fullmatch(checkpoint):
        raise RunError(f"'{checkpoint}' is no checkpoint. Choose best, last or a step.")


def _run_trainer(words: Sequence[str]) -> None:
    command = [sys.executable, "-m", "trainer", *words]
    try:
        ended = subprocess.run(
            command,
            cwd=_PROJECT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(
            f"This took longer than {_TIMEOUT_S:.0f} s and was given up. Try a shorter sentence."
        ) from None
    if ended.returncode != 0:
        lines = [line for line in ended.stderr.splitlines() if line.strip()]
        last = lines[-1] if lines else f"The process ended with code {ended.returncode}."
        raise RunError(last.removeprefix("Error: "))

"""Speaking: synthesis and export run in a short child process, never in the page's own."""

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from trainer import paths
from trainer.errors import RunError
from trainer.runs import Run

_TIMEOUT_S = 300.0
_CHECKPOINT = re.compile(r"base|best|last|\d{1,12}")


def speak(run: Run, text: str, *, speaker: str, checkpoint: str, out: Path) -> Path:
    """Synthesise a sentence with a checkpoint of a run into a WAV file.

    Raises:
        RunError: the child's own sentence on why it could not.
    """
    _run_trainer(_synthesize_words(run, text, speaker, checkpoint, str(out)))
    return out


class LiveSpeech:
    """A child process that speaks: its WAV as it comes, and its sentence if it cannot."""

    def __init__(self, run: Run, text: str, *, speaker: str, checkpoint: str) -> None:
        words = _synthesize_words(run, text, speaker, checkpoint, "-")
        self._held = ExitStack()
        # A file, because nobody reads a pipe while the sound plays, and a full one would block.
        self._said = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        process = subprocess.Popen(
            trainer_command([*words, "--stream"]),
            cwd=paths.PROJECT,
            env=paths.child_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._said,
        )
        self._process = self._held.enter_context(process)

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._process.pid

    def read(self) -> bytes:
        """Wait for the next bytes of the WAV; empty when there are no more."""
        assert self._process.stdout is not None
        # Unlike `read`, what is there already is returned at once.
        return self._process.stdout.read1(65536)  # type: ignore[attr-defined]

    def problem(self) -> str:
        """Return why the child that closed its sound failed; empty if it did not."""
        code = self._process.wait(_TIMEOUT_S)
        self._said.seek(0)
        said = self._said.read().decode(errors="replace")
        return _last_sentence(said, code) if code else ""

    def stop(self) -> None:
        """End the child, whatever it does."""
        self._process.kill()
        self._held.close()


def export(run: Run, folder: Path, *, checkpoint: str = "best", bf16: bool = False) -> Path:
    """Write the weights of a run into a new folder, where the family can also in bf16.

    Raises:
        RunError: the child's own sentence on why it could not.
    """
    check_name(checkpoint)
    words = ["export", str(run.folder), f"--out={folder}", f"--checkpoint={checkpoint}"]
    _run_trainer([*words, "--bf16"] if bf16 else words)
    return folder


def speak_takes(
    run: Run, texts: Sequence[str], checkpoints: Sequence[str], *, speaker: str, folder: Path
) -> dict[tuple[str, int], Path]:
    """Speak every text with every checkpoint in one child; return the files by both.

    Raises:
        RunError: the child's own sentence on why it could not.
    """
    for checkpoint in checkpoints:
        check_name(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    is_one = len(texts) == 1 and len(checkpoints) == 1
    out = folder / f"{checkpoints[0]}-0.wav" if is_one else folder
    # With equals signs, so that text that begins with a dash is no option.
    words = ["synthesize", str(run.folder), *(f"--text={text}" for text in texts)]
    words += [f"--checkpoint={','.join(checkpoints)}", f"--out={out}"]
    words += [f"--speaker={speaker}"] if speaker else []
    _run_trainer(words)
    pairs = ((which, number) for which in checkpoints for number in range(len(texts)))
    return {(which, number): folder / f"{which}-{number}.wav" for which, number in pairs}


def check_name(checkpoint: str) -> None:
    """Raise RunError unless it names a checkpoint: best, last or a step."""
    if not _CHECKPOINT.fullmatch(checkpoint):
        raise RunError(f"'{checkpoint}' is no checkpoint. Choose best, last, base or a step.")


def trainer_command(words: Sequence[str]) -> list[str]:
    """Return what starts the command line in a process of its own."""
    return paths.trainer_command(*words)


def _synthesize_words(run: Run, text: str, speaker: str, checkpoint: str, out: str) -> list[str]:
    check_name(checkpoint)
    # With an equals sign, so that text that begins with a dash is no option.
    words = [f"--text={text}", f"--out={out}", f"--checkpoint={checkpoint}"]
    if speaker:
        words.append(f"--speaker={speaker}")
    return ["synthesize", str(run.folder), *words]


def run_trainer(
    words: Sequence[str], *, timeout_s: float, too_long: str
) -> "subprocess.CompletedProcess[str]":
    """Run a command of the trainer to its end.

    Raises:
        RunError: `too_long`, as it took longer than that many seconds.
    """
    try:
        return subprocess.run(
            trainer_command(words),
            cwd=paths.PROJECT,
            env=paths.child_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RunError(too_long) from None


def ask_trainer(words: Sequence[str], *, timeout_s: float, too_long: str) -> dict[str, Any]:
    """Run a command of the trainer and return the JSON it prints, whatever code it ends with.

    Raises:
        RunError: its own sentence on why it could not; `too_long` as above.
    """
    ended = run_trainer(words, timeout_s=timeout_s, too_long=too_long)
    try:
        return json.loads(ended.stdout)
    except ValueError:
        raise RunError(_last_sentence(ended.stderr, ended.returncode)) from None


def _run_trainer(words: Sequence[str]) -> None:
    too_long = f"This took longer than {_TIMEOUT_S:.0f} s and was given up. Try a shorter sentence."
    ended = run_trainer(words, timeout_s=_TIMEOUT_S, too_long=too_long)
    if ended.returncode != 0:
        raise RunError(_last_sentence(ended.stderr, ended.returncode))


def _last_sentence(said: str, code: int) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else f"The process ended with code {code}."
    return last.removeprefix("Error: ")

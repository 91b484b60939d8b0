"""Run synthesis and export in child processes, so that the page never loads torch."""

import json
import re
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from trainer.core.child_process import (
    PIPE,
    PROJECT,
    Ended,
    child_environment,
    run_child,
    start_child,
    trainer_command,
)
from trainer.core.errors import RunError
from trainer.runs.run import Run

_TIMEOUT_S = 300.0  # Chosen by hand: a long sentence on a slow CPU takes minutes, not hours.
_CHECKPOINT = re.compile(r"base|best|last|\d{1,12}")


def speak(run: Run, text: str, *, speaker: str, checkpoint: str, out: Path) -> Path:
    """Synthesize a sentence with a checkpoint of a run to a WAV file.

    Raises:
        RunError: synthesis failed; the message is the child's own.
    """
    _run_trainer(_synthesize_words(run, text, speaker, checkpoint, str(out)))
    return out


class LiveSpeech:
    """A child process that streams synthesized speech as WAV, and its error message if it fails."""

    def __init__(self, run: Run, text: str, *, speaker: str, checkpoint: str) -> None:
        words = _synthesize_words(run, text, speaker, checkpoint, "-")
        self._held = ExitStack()
        # A file, because nothing reads a pipe during playback, and a full pipe would block.
        self._said = self._held.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        process = start_child(
            trainer_command(*words, "--stream"),
            output=PIPE,
            errors=self._said,
            environment=child_environment(),
            folder=PROJECT,
        )
        self._process = self._held.enter_context(process)

    @property
    def pid(self) -> int:
        """The process id of the child."""
        return self._process.pid

    def read(self) -> bytes:
        """Wait for the next bytes of the WAV; return b"" at its end."""
        assert self._process.stdout is not None
        # Unlike `read`, `read1` returns what is available instead of waiting for a full block.
        return self._process.stdout.read1(65536)  # type: ignore[attr-defined]

    def problem(self) -> str:
        """Return the error message of a child that closed its output; empty if it succeeded."""
        code = self._process.wait(_TIMEOUT_S)
        self._said.seek(0)
        return _last_sentence(self._said.read(), code) if code else ""

    def stop(self) -> None:
        """Kill the child process."""
        self._process.kill()
        self._held.close()


def export(run: Run, folder: Path, *, checkpoint: str = "best", bf16: bool = False) -> Path:
    """Export the weights of a run to a new folder; some families support bf16.

    Raises:
        RunError: the export failed; the message is the child's own.
    """
    check_name(checkpoint)
    words = ["export", str(run.folder), f"--out={folder}", f"--checkpoint={checkpoint}"]
    _run_trainer([*words, "--bf16"] if bf16 else words)
    return folder


def speak_takes(
    run: Run, texts: Sequence[str], checkpoints: Sequence[str], *, speaker: str, folder: Path
) -> dict[tuple[str, int], Path]:
    """Synthesize every text with every checkpoint in one child process.

    Returns:
        WAV files by checkpoint and index of the text.

    Raises:
        RunError: synthesis failed; the message is the child's own.
    """
    for checkpoint in checkpoints:
        check_name(checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    is_one = len(texts) == 1 and len(checkpoints) == 1
    out = folder / f"{checkpoints[0]}-0.wav" if is_one else folder
    # With equals signs, so that a text that begins with a dash is not parsed as an option.
    words = ["synthesize", str(run.folder), *(f"--text={text}" for text in texts)]
    words += [f"--checkpoint={','.join(checkpoints)}", f"--out={out}"]
    words += [f"--speaker={speaker}"] if speaker else []
    _run_trainer(words)
    pairs = ((which, number) for which in checkpoints for number in range(len(texts)))
    return {(which, number): folder / f"{which}-{number}.wav" for which, number in pairs}


def check_name(checkpoint: str) -> None:
    """Raise RunError unless the name is valid: best, last, base or a step."""
    if not _CHECKPOINT.fullmatch(checkpoint):
        raise RunError(f"'{checkpoint}' is not a checkpoint. Choose best, last, base or a step.")


def _synthesize_words(run: Run, text: str, speaker: str, checkpoint: str, out: str) -> list[str]:
    check_name(checkpoint)
    # With an equals sign, so that a text that begins with a dash is not parsed as an option.
    words = [f"--text={text}", f"--out={out}", f"--checkpoint={checkpoint}"]
    if speaker:
        words.append(f"--speaker={speaker}")
    return ["synthesize", str(run.folder), *words]


def _run(argv: Sequence[str], *, timeout_s: float, too_long: str) -> Ended:
    """Run a trainer command and wait for it; after `timeout_s`, raise `too_long` as a RunError."""
    command, environment = trainer_command(*argv), child_environment()
    try:
        return run_child(command, timeout_s=timeout_s, environment=environment, folder=PROJECT)
    except TimeoutError:
        raise RunError(too_long) from None


def ask_trainer(argv: Sequence[str], *, timeout_s: float, too_long: str) -> dict[str, Any]:
    """Run a trainer command and return the JSON it prints, whatever its exit code.

    Raises:
        RunError: it printed no JSON or took longer than `timeout_s`.
    """
    ended = _run(argv, timeout_s=timeout_s, too_long=too_long)
    try:
        return json.loads(ended.stdout)
    except ValueError:
        raise RunError(_last_sentence(ended.stderr, ended.returncode)) from None


def _run_trainer(argv: Sequence[str]) -> None:
    too_long = f"Timed out after {_TIMEOUT_S:.0f} s. Try a shorter sentence."
    ended = _run(argv, timeout_s=_TIMEOUT_S, too_long=too_long)
    if ended.returncode != 0:
        raise RunError(_last_sentence(ended.stderr, ended.returncode))


def _last_sentence(said: bytes, code: int) -> str:
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else f"The process ended with code {code}."
    return last.removeprefix("Error: ")

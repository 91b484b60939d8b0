"""Start child processes: the only place that calls subprocess.

A child has a log instead of the caller's terminal, or shares the terminal. It ends with the caller
or outlives it.
"""

import os
import signal
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal, TypeAlias

import psutil

Child: TypeAlias = subprocess.Popen[bytes]
Ended: TypeAlias = subprocess.CompletedProcess[bytes]
Output: TypeAlias = IO[bytes] | int
PIPE, NOWHERE = subprocess.PIPE, subprocess.DEVNULL
PROJECT = next(
    folder.parent for folder in Path(__file__).resolve().parents if folder.name == "trainer"
)
"""The folder that holds the packages: the source tree, or site-packages."""
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""The variable that does what -P does, for programs that start Python themselves, as torchrun."""
Lifetime = Literal["caller", "group", "session"]
"""What ends a child besides its own command.

`caller`: Ctrl+C in the terminal reaches both. `group`: it reaches only the caller, which decides
about the child. `session`: the child outlives the caller and its terminal.
"""


def trainer_command(*words: str) -> list[str]:
    """Return the command line that runs a command of the trainer in a process of its own."""
    # -P keeps Python from searching the working folder, where another project may have a folder
    # named trainer. The environment below tells it where to search instead.
    return [sys.executable, "-P", "-m", "trainer", *words]


def child_environment() -> dict[str, str]:
    """Return this environment, changed so that a child process finds the same packages."""
    environment = dict(os.environ)
    search = environment.get("PYTHONPATH", "").split(os.pathsep)
    if not is_on_default_path() and str(PROJECT) not in search:
        environment["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *filter(None, search)])
    return environment


def is_on_default_path() -> bool:
    """Whether every Python process of this environment finds the packages by itself.

    site-packages must not stand in PYTHONPATH: it would come before the standard library there.
    """
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return PROJECT in [Path(folder).resolve() for folder in folders]


def start_child(
    command: Sequence[str],
    *,
    output: Output | None = None,
    errors: Output | None = None,
    lifetime: Lifetime = "caller",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    descriptors: Sequence[int] = (),
) -> Child:
    """Start a child process and return at once.

    Args:
        output: where its output goes; its errors go there too unless `errors` is given. Without
            it, the child shares the caller's terminal.
        environment: its variables instead of the caller's.
        folder: its working folder.
        descriptors: open files that it inherits, besides its input and output.
    """
    if output is not None and errors is None:
        errors = subprocess.STDOUT
    return subprocess.Popen(
        command,
        # A child that nobody watches must not wait for the keyboard.
        stdin=None if output is None else subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env=environment,
        cwd=folder,
        pass_fds=tuple(descriptors),
        start_new_session=lifetime == "session",
        process_group=0 if lifetime == "group" else None,
    )


def run_child(
    command: Sequence[str],
    *,
    timeout_s: float,
    text: bytes = b"",
    output: Output = PIPE,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Ended:
    """Run a child process to its end and return its exit code, output and errors.

    Args:
        timeout_s: the time limit, after which the child and all that it started are killed.
        text: its input.
        output: NOWHERE drops the output of a child that cannot be trusted to say little.

    Raises:
        TimeoutError: it took longer than `timeout_s`.
    """
    with subprocess.Popen(
        command, stdin=PIPE, stdout=output, stderr=PIPE, env=environment, cwd=folder
    ) as process:
        try:
            said, errors = process.communicate(text, timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{command[0]} took longer than {timeout_s:.0f} s.") from None
        finally:
            end_child(process)
    return subprocess.CompletedProcess(command, process.returncode, said or b"", errors)


def wait_for_child(process: Child, timeout_s: float) -> bool:
    """Wait for a child at most so long; return whether it has ended."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    return process.returncode is not None


def end_child(process: Child) -> None:
    """Kill a child and all that it started, such as a compiler's workers, and wait for its end."""
    if process.poll() is None:
        kill_with_descendants(process.pid)
        process.wait()


def kill_with_descendants(pid: int) -> None:
    """Kill a process and its descendants; do nothing if it has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        # Listed before the kill: orphans no longer have the process as their parent.
        for member in [*process.children(recursive=True), process]:
            with suppress(psutil.Error):
                member.kill()  # psutil checks the start time before it sends the signal


def last_error(path: Path) -> str:
    """Return the last error that a command of the trainer wrote to its log; empty if none."""
    try:
        lines = [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    except OSError:
        return ""
    errors = [line for line in lines if line.startswith("Error: ")]
    return errors[-1].removeprefix("Error: ") if errors else ""


def hear_interrupts() -> None:
    """Undo an ignored SIGINT if it was inherited from a caller that this process has outgrown.

    A shell that starts a background job of a script ignores SIGINT in it, so that Ctrl+C does not
    end the job, and every process that the job starts inherits that. In a group of its own a
    process gets no Ctrl+C of that terminal, only signals that are meant for it.
    """
    if os.name == "nt" or os.getpgrp() != os.getpid():
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""The interface of a command, and what all commands share."""

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from trainer.core.version import __version__

FINISHED, STOPPED = 0, 10  # a script can tell "stopped, can be continued" from an error
"""Exit codes of the commands that can be continued; `train` uses the same."""

Echo = Callable[[str], None]
"""Prints a line for the user."""


@dataclass(frozen=True)
class Command:
    """A command: `run` adds its flags to the parser, does what they ask and returns the exit code.

    Commands are listed in the order of `position`, in which a new user meets them. A module is
    imported to list its command, so it imports torch and what needs torch inside `run`.
    """

    name: str
    summary: str
    position: int
    run: Callable[[argparse.ArgumentParser, Sequence[str], Echo], int]

    def parser(self) -> argparse.ArgumentParser:
        """Return a parser that has no flags yet."""
        # No abbreviations: a new option must not change what an old script means.
        return argparse.ArgumentParser(
            prog=f"{program()} {self.name}", description=self.summary, allow_abbrev=False
        )


def add_run(parser: argparse.ArgumentParser, help_text: str = "the run folder") -> None:
    """Add the argument that names a run folder."""
    parser.add_argument("run", metavar="DIR", help=help_text)


def top_parser(commands: Mapping[str, Command]) -> argparse.ArgumentParser:
    """Return the parser that only lists the commands, by name and summary, and the version."""
    parser = argparse.ArgumentParser(
        prog=program(),
        usage=f"{program()} COMMAND ...",
        description=f"Fine-tune text-to-speech models.\n\n{describe_commands(commands, program())}",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # keeps the line breaks of the list
    )
    parser.add_argument("--version", action="version", version=f"Timbre {__version__}")
    return parser


def describe_commands(commands: Mapping[str, Command], program: str) -> str:
    """Return the part of a help text that lists the commands of a program."""
    # 11 is the length of the longest command, `synthesize`, plus a space.
    lines = "\n".join(f"  {name:<11} {command.summary}" for name, command in commands.items())
    return f"commands:\n{lines}\n\n{program} COMMAND --help explains every option of a command."


def program() -> str:
    """Return how the command line was started, as a person would type it."""
    # The stem, because the command is `timbre.exe` on Windows.
    return "timbre" if Path(sys.argv[0]).stem == "timbre" else "python -m trainer"


@contextmanager
def on_stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at SIGTERM and SIGINT instead of dying, until the block ends."""

    def handle(signum: int, frame: FrameType | None) -> None:
        stop()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        # The caller may be a long-lived process, such as a test, with handlers of its own.
        for number, handler in before.items():
            signal.signal(number, handler)

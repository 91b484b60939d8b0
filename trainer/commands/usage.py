"""Usage: the help texts that all commands share, under the name the program was started by."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from trainer.core.version import __version__


def top_parser(commands: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser that only lists the commands, by name and summary, and the version."""
    parser = argparse.ArgumentParser(
        prog=program(),
        usage=f"{program()} COMMAND ...",
        description=f"Fine-tune text-to-speech models.\n\n{describe_commands(commands, program())}",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # keeps the line breaks of the list
    )
    parser.add_argument("--version", action="version", version=f"Timbre {__version__}")
    return parser


def describe_commands(commands: Mapping[str, str], program: str) -> str:
    """Return the part of a help text that lists the commands of a program."""
    # 11 is the length of the longest command, `synthesize`, plus a space.
    lines = "\n".join(f"  {name:<11} {text}" for name, text in commands.items())
    return f"commands:\n{lines}\n\n{program} COMMAND --help explains every option of a command."


def program() -> str:
    """Return how the command line was started, as a person would type it."""
    # The stem, because the command is `timbre.exe` on Windows.
    return "timbre" if Path(sys.argv[0]).stem == "timbre" else "python -m trainer"

"""Implement the command line: python -m trainer check | train | resume | stop | status | ..."""

import sys
from collections.abc import Sequence

from trainer.commands._command import Command, top_parser
from trainer.core.errors import TimbreError, refusal_of_disk
from trainer.core.registry import discover


def list_commands() -> dict[str, Command]:
    """Return all commands by name, in the order in which a new user meets them."""
    commands = discover("trainer.commands", Command)
    return dict(sorted(commands.items(), key=lambda pair: pair[1].position))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a TimbreError is printed as a sentence."""
    argv = list(sys.argv[1:] if argv is None else argv)
    commands = list_commands()
    parser = top_parser(commands)
    if not argv or argv[0] in ("-h", "--help"):
        parser.print_help()
        return 0 if argv else 2  # nothing was asked for: a usage error, as argparse exits
    if argv[0] == "--version":
        parser.parse_args(argv)
    if argv[0] not in commands:
        parser.error(f"'{argv[0]}' is not a command; use one of: {', '.join(commands)}")
    command = commands[argv[0]]
    try:
        return command.run(command.parser(), argv[1:], _echo)
    except TimbreError as error:
        print(f"Error: {error}", file=sys.stderr)  # stdout may be JSON for another program
        return error.exit_code  # lets a script tell a bad setting from a failed run
    except BrokenPipeError:
        return 0  # the reader, such as `head`, has seen enough
    except OSError as error:  # not from training, which logs its own failures
        if not (text := refusal_of_disk(error)):
            raise  # not about a file: a bug, and its traceback is wanted
        print(f"Error: {text}", file=sys.stderr)
        return 1


def _echo(text: str) -> None:
    print(text, flush=True)

"""The `timbre` command: starts the page, or runs a command of `python -m trainer`."""

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

# Run by its path: imported by name, it would import trainer/__init__.py first, which may be
# another package's.
_COMMANDS = Path(__file__).resolve().parent.parent / "trainer" / "commands"
_COMPANION = _COMMANDS / "_package_conflict.py"


def main(words: Sequence[str] | None = None) -> None:
    """Start the page if there is no command, with the page's own options; else run the command."""
    words = list(sys.argv[1:] if words is None else words)
    runpy.run_path(str(_COMPANION))["refuse_foreign_trainer"]()
    if words and not words[0].startswith("-"):
        from trainer.__main__ import main as run_command

        run_command(words)
    from webui import launch

    if words and words[0] in ("-h", "--help"):
        from trainer.commands._command import describe_commands
        from trainer.commands.main import list_commands

        launch.build_parser(epilog=describe_commands(list_commands(), "timbre")).print_help()
        return
    launch.main(words)

"""The README keeps its word: its commands exist, its files exist, its tables match the catalogs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.commands.main import COMMANDS
from trainer.config.presets import PRESETS
from trainer.config.schedules import SCHEDULES
from trainer.core.registry import discover
from trainer.core.specs import ModelFamily, Optimization, OptimizerSpec

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _command(name: str) -> str:
    match = re.search(rf"<!-- {name} command -->\s*```bash\n(.+?)\n```", README, re.DOTALL)
    assert match, f"README.md holds no {name} command"
    return match[1]


def test_the_first_screen_has_a_picture_and_two_commands() -> None:
    first_screen = "\n".join(README.splitlines()[:30])

    assert "assets/screenshots/live.png" in first_screen
    assert _command("start") in first_screen
    assert _command("test") in first_screen


def test_the_commands_install_what_is_pinned_and_start_what_is_there() -> None:
    start, test = _command("start"), _command("test")

    for command in (start, test):
        for path in re.findall(r"-r (\S+)", command):
            assert (ROOT / path).is_file(), path
    assert start.endswith("python app.py")
    assert test.endswith("python -m pytest -n 2")


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    program = re.search(r"awk '(.+?)' README\.md", script)

    assert program
    extracted = subprocess.run(
        ["awk", program[1], "README.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert extracted.stdout.strip() == _command("test")


def test_every_file_the_readme_links_to_exists() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)

    missing = [path for path in targets if "://" not in path and not (ROOT / path).exists()]

    assert targets
    assert missing == []


def test_the_readme_names_every_catalog_entry() -> None:
    names: list[str] = [*PRESETS, *SCHEDULES, *COMMANDS]
    names += discover("trainer.models", ModelFamily)
    names += discover("trainer.optimizers", OptimizerSpec)
    names += discover("trainer.optimizations", Optimization)

    missing = [name for name in names if f"`{name}`" not in README]

    assert missing == []


def test_every_command_line_of_the_readme_is_understood() -> None:
    commands = {line.split()[3] for line in re.findall(r"python -m trainer \w+.*", README)}

    assert commands
    assert commands <= set(COMMANDS)


@pytest.mark.parametrize("program", ["app.py", "-mtrainer"])
def test_the_programs_start(program: str) -> None:
    result = subprocess.run(
        [sys.executable, program, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout

"""The documentation is true: links, commands, flags and paths exist, and marked examples run."""

import ast
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from trainer.commands.main import list_commands, main
from trainer.config.presets import PRESETS
from trainer.config.schedules import SCHEDULES

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").is_file())
REGISTRIES = ("trainer/models", "trainer/optimizers", "trainer/optimizations")
MOST_WORDS = 1200
FENCE = re.compile(
    r"^(?P<mark><!-- runnable -->\n)?```(?P<kind>\w*)\n(?P<code>.*?)^```", re.M | re.S
)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE_PATH = re.compile(
    r"(?<![\w/.-])(?:trainer|webui|tests|benchmarks|assets)/[\w./-]+\.(?:py|json|js|css|csv|sh|md|png)\b"
)
MODULE = re.compile(r"python3? -m ((?:assets|benchmarks|tests|trainer)(?:\.\w+)+)")
FLAG = re.compile(r"(?<![\w-])--[a-z0-9][a-z0-9-]*")
WRITTEN_BY_A_RUN = {"benchmarks/results/gpu.json"}
"""Paths that only appear when somebody runs the command beside them."""


def _pages() -> list[Path]:
    """Return every Markdown file that people read."""
    root_pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    optional = [ROOT / "SECURITY.md", ROOT / "assets/README.md", ROOT / "benchmarks/README.md"]
    return [
        *root_pages,
        *(path for path in optional if path.is_file()),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PAGES = pytest.mark.parametrize("page", _pages(), ids=_name)
README = (ROOT / "README.md").read_text(encoding="utf-8")
EVERYTHING = "\n".join(page.read_text(encoding="utf-8") for page in _pages())


def _marked(name: str) -> str:
    match = re.search(rf"<!-- {name} command -->\s*```bash\n(.+?)\n```", README, re.DOTALL)
    assert match, f"README.md has no {name} command"
    return match[1]


@cache
def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.+?) *$", text, re.M)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


def _command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of every `python -m trainer ...` of a page, in fences and in sentences."""
    fences = [match["code"] for match in FENCE.finditer(text) if match["kind"] == "bash"]
    inline = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for code in [*fences, *inline]:
        for line in code.replace("\\\n", " ").splitlines():
            if match := re.search(r"python -m trainer ([^|#]*)", line):
                with suppress(ValueError):  # A sentence may quote a part of a command.
                    yield shlex.split(match[1])


@cache
def _flags_of(command: str, context: tuple[str, ...]) -> set[str]:
    """Return the flags that a command's help lists."""
    shown = io.StringIO()
    with redirect_stdout(shown), pytest.raises(SystemExit) as ending:
        main([command, *context, "--help"])
    assert ending.value.code == 0, (command, context)
    return set(FLAG.findall(shown.getvalue()))


def _context(words: list[str]) -> tuple[str, ...]:
    """Return the words that decide which options a command has."""
    names = ("--family", "--preset", "--optimizer", "--schedule")
    pairs = zip(words, words[1:], strict=False)
    return tuple(word for name, value in pairs if name in names for word in (name, value))


def test_the_first_screen_has_a_picture_and_the_start_command():
    first_screen = "\n".join(README.splitlines()[:30])

    assert re.search(r"!\[.+\]\(assets/screenshots/.+\)", first_screen)
    assert "git clone" in first_screen
    assert _marked("start") in first_screen


def test_the_readme_fits_on_three_screens():
    assert len(README.split()) <= MOST_WORDS


def test_the_commands_install_what_is_pinned_and_start_what_is_there():
    start, test = _marked("start"), _marked("test")

    for command in (start, test):
        for path in re.findall(r"-r (\S+)", command):
            assert (ROOT / path).is_file(), path
    assert start.endswith("python app.py")
    assert test.endswith("python -m pytest -n 2")


def test_ci_runs_the_test_command_of_the_readme():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    program = re.search(r"awk '(.+?)' README\.md", script)

    assert program
    extracted = subprocess.run(
        ["awk", program[1], "README.md"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert extracted.stdout.strip() == _marked("test")


@PAGES
def test_every_link_leads_somewhere(page: Path):
    text = re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text(encoding="utf-8")))
    links = [link for link in LINK.findall(text) if "://" not in link]

    broken = []
    for link in links:
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        is_found = target.exists() and (not anchor or anchor in _anchors(target))
        broken += [] if is_found else [link]

    assert broken == []


@PAGES
def test_every_path_and_module_that_a_page_names_exists(page: Path):
    text = page.read_text(encoding="utf-8")
    paths = {path.rstrip(".") for path in SOURCE_PATH.findall(text)} - WRITTEN_BY_A_RUN
    modules = {name.replace(".", "/") for name in MODULE.findall(text)}

    missing = sorted(path for path in paths if not (ROOT / path).exists())
    missing += sorted(
        name
        for name in modules
        if not (ROOT / f"{name}.py").is_file() and not (ROOT / name / "__main__.py").is_file()
    )

    assert missing == []


@PAGES
def test_every_command_line_is_understood(page: Path):
    wrong = []
    for words in _command_lines(page.read_text(encoding="utf-8")):
        if not words or words[0] in ("COMMAND", "...", "X") or words[0].startswith("-"):
            continue
        if words[0] not in list_commands():
            wrong.append(words[0])
            continue
        asked = {match[0] for word in words if (match := FLAG.match(word))}
        if unknown := asked - _flags_of(words[0], _context(words)) - {"--help"}:
            wrong.append(f"{words[0]}: {sorted(unknown)}")

    assert wrong == []


def test_every_entry_is_documented():
    names: list[str] = [*PRESETS, *SCHEDULES, *list_commands()]
    for folder in REGISTRIES:
        entries = [
            path for path in (ROOT / folder).iterdir() if not path.name.startswith((".", "_"))
        ]
        names += [path.stem for path in entries if path.suffix == ".py" or path.is_dir()]

    missing = sorted(name for name in names if f"`{name}`" not in EVERYTHING)

    assert missing == []


def test_every_page_of_the_documentation_can_be_reached():
    pages = {page.resolve() for page in _pages()}
    reached, waiting = set(), [(ROOT / "README.md").resolve()]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.is_file():
            continue
        reached.add(page)
        links = LINK.findall(page.read_text(encoding="utf-8"))
        waiting += [
            (page.parent / unquote(link).partition("#")[0]).resolve()
            for link in links
            if "://" not in link and not link.startswith("#")
        ]

    assert sorted(_name(page) for page in pages - reached) == []


def test_the_table_of_layers_is_the_one_that_is_enforced():
    page = (ROOT / "docs" / "how-it-is-built.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d) \| (.+?) \|", page, re.M)
    drawn = {
        name.removesuffix(".py").replace("/", "."): int(layer)
        for layer, names in rows
        for name in re.findall(r"`(.+?)`", names)
    }
    architecture = ast.parse((ROOT / "tests/project/test_architecture.py").read_text("utf-8"))
    [enforced] = [
        ast.literal_eval(node.value)
        for node in architecture.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS"
    ]

    # `trainer` itself is `__init__.py` and `__main__.py`, which the page leaves out.
    assert drawn == {name: layer for name, layer in enforced.items() if name != "trainer"}


def test_the_drawing_has_the_arrows_between_packages():
    page = (ROOT / "docs" / "how-it-is-built.md").read_text(encoding="utf-8")
    arrows = re.findall(r"^    (\w+) --> (.+)$", page, re.M)
    drawn = {source: set(targets.split(" & ")) for source, targets in arrows}

    imported = _imports_between_packages()

    undrawn = {
        f"{source} -> {target}"
        for source, targets in imported.items()
        for target in targets - _reachable(drawn, source)
    }
    invented = {
        f"{source} -> {target}"
        for source, targets in drawn.items()
        for target in targets - imported.get(source, set())
    }
    assert (undrawn, invented) == (set(), set())


def _imports_between_packages() -> dict[str, set[str]]:
    """Return which packages each package imports, without the folder `trainer` in the names."""
    packages = {path.name for path in (ROOT / "trainer").iterdir() if path.is_dir()}
    found: dict[str, set[str]] = {}
    pages = set(ROOT.glob("webui/**/*.py")) - {ROOT / "webui" / "cli.py"}  # above the page
    for path in [*ROOT.glob("trainer/*/**/*.py"), *pages]:
        parts = path.relative_to(ROOT).parts
        source = "webui" if parts[0] == "webui" else parts[1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_from = isinstance(node, ast.ImportFrom)
            modules = [node.module or ""] if is_from else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names = {name.split(".")[1] for name in modules if name.startswith("trainer.")}
            found.setdefault(source, set()).update((names & packages) - {source})
    return found


def _reachable(arrows: dict[str, set[str]], source: str) -> set[str]:
    """Return every package that a chain of arrows leads to."""
    direct = arrows.get(source, set())
    return direct.union(*(_reachable(arrows, target) for target in direct))


def test_the_sections_of_the_changelog_are_dated():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (.+)$", text, re.M)

    assert sections
    for section in sections:
        assert re.fullmatch(r"\[\d+\.\d+\.\d+\] - (unreleased|\d{4}-\d\d-\d\d)", section), section


def _runnable() -> dict[Path, list[tuple[str, str]]]:
    """Return the examples that are marked as runnable, by page."""
    found: dict[Path, list[tuple[str, str]]] = {}
    for page in _pages():
        for match in FENCE.finditer(page.read_text(encoding="utf-8")):
            if match["mark"]:
                found.setdefault(page, []).append((match["kind"], match["code"]))
    return found


@pytest.mark.parametrize("page", _runnable(), ids=_name)
def test_every_example_that_is_marked_runs(page: Path, tmp_path: Path):
    (tmp_path / "assets").symlink_to(ROOT / "assets")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TIMBRE_CACHE": str(tmp_path / "cache"),
        "TIMBRE_RESTARTS": "0",
    }

    for kind, code in _runnable()[page]:
        program = {"bash": ["bash", "-euo", "pipefail"], "python": [sys.executable]}[kind]
        result = subprocess.run(
            [*program, "-c", code], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 0, f"{code}\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize("program", ["app.py", "-mtrainer"])
def test_the_programs_start(program: str):
    result = subprocess.run(
        [sys.executable, program, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert result.returncode == 0, result.stderr
    assert "usage" in result.stdout

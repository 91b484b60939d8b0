"""The package: requirements agree, the wheel is complete, and its command works from anywhere."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from safetensors import safe_open

import trainer
from tests.helpers.toy import make_setup
from trainer.checkpoints.checkpoint import save_checkpoint, verify_checkpoint
from trainer.core.run_config import WRITTEN_BY, RunConfig
from trainer.core.version import __version__
from trainer.models._weights import save_tensors, write_own
from trainer.runs.run import Run

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _requirements(path: Path) -> dict[str, Requirement]:
    """Return the requirements of a file by name, without those it includes."""
    lines = [line.split("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return _by_name(line for line in lines if line and not line.startswith("-"))


def _by_name(lines: Iterator[str] | list[str]) -> dict[str, Requirement]:
    found = [Requirement(line) for line in lines]
    return {canonicalize_name(each.name): each for each in found}


CORE = _requirements(ROOT / "requirements.txt")
DEV = _requirements(ROOT / "tests" / "requirements.txt")
EXTRAS = PROJECT["project"]["optional-dependencies"]


def _locked() -> list[Requirement]:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    return [Requirement(line) for line in text.splitlines() if not line.startswith("#")]


# Requirements


def test_the_wheel_needs_what_requirements_txt_names_but_the_tests() -> None:
    needed = _by_name(PROJECT["project"]["dependencies"])

    assert needed == {name: each for name, each in CORE.items() if name != "pytest"}


def test_the_extra_dev_is_what_the_tests_need() -> None:
    assert _by_name(EXTRAS["dev"]) == DEV | {"pytest": CORE["pytest"]}


def test_a_package_has_one_range_everywhere() -> None:
    known = CORE | DEV

    differing = [
        f"{extra}: {each}"
        for extra, lines in EXTRAS.items()
        for name, each in _by_name(lines).items()
        if name in known and known[name] != each
    ]

    assert differing == []


def test_the_extra_all_names_every_extra_for_users() -> None:
    (everything,) = (Requirement(line) for line in EXTRAS["all"])

    assert everything.name == "timbre"
    assert everything.extras == set(EXTRAS) - {"all", "dev"}


def test_every_requirement_is_locked_inside_its_range() -> None:
    locked = _locked()

    outside = [
        str(wanted)
        for name, wanted in (CORE | DEV).items()
        if not (found := [each for each in locked if canonicalize_name(each.name) == name])
        or not all(wanted.specifier.contains(next(iter(each.specifier)).version) for each in found)
    ]

    assert outside == []


def test_the_lock_file_names_its_command_and_no_registry() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")

    assert "uv pip compile tests/requirements.txt" in text
    assert not re.search(r"://|--(extra-)?index|--find-links", text)


# The version


def test_the_version_stands_in_one_place() -> None:
    places = [
        path.relative_to(ROOT).as_posix()
        for path in [*ROOT.glob("*.py"), *ROOT.glob("*.toml"), *ROOT.glob("trainer/**/*.py")]
        if re.search(rf'ersion__? = "{re.escape(__version__)}"', path.read_text(encoding="utf-8"))
    ]

    assert places == [PROJECT["tool"]["hatch"]["version"]["path"]]
    assert trainer.__version__ == __version__


def test_a_run_names_the_version_that_made_it_and_reads_the_same(tmp_path: Path) -> None:
    config = RunConfig()

    run = Run.create(tmp_path / "voice", config)

    written = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    assert written["timbre_version"] == __version__
    assert run.config == config
    assert "timbre_version" not in run.config.to_json()


@pytest.mark.parametrize("version", ["0.1.0", "99.0", 7, None])
def test_a_run_of_any_version_opens(tmp_path: Path, version: object) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    values = RunConfig().to_json() | ({} if version is None else {"timbre_version": version})
    (run.folder / "run.json").write_text(json.dumps(values), encoding="utf-8")

    assert Run.open(run.folder).config == RunConfig()


def test_a_checkpoint_names_the_version_and_older_ones_verify(tmp_path: Path) -> None:
    state = make_setup(tmp_path)
    save_checkpoint(state, 1, best=True)
    old = ROOT / "tests" / "museum" / "checkpoint-format-1"

    manifest = verify_checkpoint(tmp_path / "checkpoints" / "step-00000001")

    assert manifest["timbre_version"] == __version__
    assert "timbre_version" not in verify_checkpoint(old)


def test_exported_weights_name_the_version(tmp_path: Path) -> None:
    write_own(tmp_path / "own", {"weight": torch.zeros(2)}, {"family": "toy"})
    save_tensors(tmp_path / "published", {"weight": torch.zeros(2)}, {WRITTEN_BY: __version__})

    files = [tmp_path / "own" / "model.safetensors", tmp_path / "published"]
    for path in files:
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"timbre_version": __version__}
            assert torch.equal(file.get_tensor("weight"), torch.zeros(2))
    facts = json.loads((tmp_path / "own" / "config.json").read_text(encoding="utf-8"))
    assert facts == {"family": "toy"}


# The wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree, built without a network."""
    out = tmp_path_factory.mktemp("wheel")
    words = ["wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(out)]
    subprocess.run([sys.executable, "-m", "pip", *words, str(ROOT)], check=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like site-packages that holds the wheel."""
    site = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A working folder that has a package of its own named trainer."""
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "__init__.py").write_text("raise SystemExit('the wrong trainer')\n")
    return tmp_path


def _timbre(site: Path, folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    """Run the command as its script in bin/ does."""
    source = "import sys; sys.argv[0] = 'bin/timbre'; from webui.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-P", "-c", source, *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_takes_three_names_and_gives_one_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entry_points,) = (name for name in names if name.endswith("entry_points.txt"))
        commands = archive.read(entry_points).decode()

    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "trainer", "webui", "timbre_assets",
    }  # fmt: skip
    assert re.findall(r"^(\w+) = (\S+)$", commands, re.M) == [("timbre", "webui.cli:main")]
    assert wheel.name.split("-")[1] == __version__


def test_the_wheel_holds_every_file_that_the_source_tree_reads(installed: Path) -> None:
    folders = ["trainer", "webui", "assets/base", "assets/demo", "webui/static"]
    needed = [
        path.relative_to(ROOT)
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name != "README.md"
    ]

    missing = [
        str(path)
        for path in needed
        if not (installed / str(path).replace("assets/", "timbre_assets/", 1)).is_file()
    ]

    assert len(needed) > 300
    assert missing == []


def test_measurements_and_scripts_stay_out_of_the_wheel(installed: Path) -> None:
    held = {path.name for path in (installed / "timbre_assets").iterdir()}

    assert held <= {"README.md", "base", "demo", "page"}


def test_an_installed_timbre_finds_its_assets(installed: Path, elsewhere: Path) -> None:
    source = "from webui.studio import ASSETS, PROJECT; print(ASSETS); print(PROJECT)"

    said = subprocess.run(
        [sys.executable, "-P", "-c", source],
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert said.stdout.split() == [str(installed / "timbre_assets"), str(installed)]


# The command


def test_the_command_lists_its_options_and_commands(installed: Path, elsewhere: Path) -> None:
    help_text = _timbre(installed, elsewhere, "--help").stdout
    version = _timbre(installed, elsewhere, "--version").stdout

    assert "--port PORT" in help_text
    assert "  train " in help_text and "  export " in help_text
    assert "timbre COMMAND --help" in help_text
    assert version == f"Timbre {__version__}\n"


def test_a_word_is_a_command_and_its_exit_code_is_kept(installed: Path, elsewhere: Path) -> None:
    unknown = _timbre(installed, elsewhere, "sing")
    absent = _timbre(installed, elsewhere, "status", "nowhere")

    assert unknown.returncode == 2
    assert "'sing' is not a command" in unknown.stderr
    assert absent.returncode == 1
    assert "nowhere holds no run" in absent.stderr


def test_a_child_uses_this_timbre_from_a_folder_with_another_trainer(
    installed: Path, elsewhere: Path
) -> None:
    # `resume` starts a child, which says that there is no run.
    ended = _timbre(installed, elsewhere, "resume", "nowhere")

    assert "nowhere holds no run" in ended.stderr
    assert "the wrong trainer" not in ended.stderr


# Another package named trainer


def _add_companion(site: Path, *, overwrites: bool) -> None:
    """Install a package like coqui-tts's companion over ours, or as if ours came after it."""
    text = "from trainer.trainer import Trainer\n"
    if overwrites:
        (site / "trainer" / "__init__.py").write_text(text, encoding="utf-8")
    info = site / "coqui_tts_trainer-0.4.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coqui-tts-trainer\nVersion: 0.4.0")
    digest = hashlib.sha256(text.encode()).hexdigest()
    (info / "RECORD").write_text(f"trainer/__init__.py,sha256={digest},{len(text)}\n")


@pytest.fixture
def own_site(wheel: Path, tmp_path: Path) -> Path:
    """An installed Timbre that a test may damage."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    return site


def test_a_trainer_that_another_package_replaced_is_explained(
    own_site: Path, elsewhere: Path
) -> None:
    _add_companion(own_site, overwrites=True)

    ended = _timbre(own_site, elsewhere, "status", "nowhere")

    assert ended.returncode == 2
    assert "belongs to coqui-tts-trainer, not to Timbre" in ended.stderr
    assert "pip uninstall coqui-tts-trainer" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_trainer_that_another_package_removed_is_explained(
    own_site: Path, elsewhere: Path
) -> None:
    (own_site / "trainer" / "__init__.py").unlink()

    ended = _timbre(own_site, elsewhere, "--version")

    assert ended.returncode == 2
    assert "belongs to another package" in ended.stderr


def test_two_packages_in_one_folder_are_warned_of(own_site: Path, elsewhere: Path) -> None:
    _add_companion(own_site, overwrites=False)

    ended = _timbre(own_site, elsewhere, "status", "nowhere")

    assert ended.returncode == 1
    warning = "Warning: coqui-tts-trainer is installed in the same folder"
    assert ended.stderr.count(warning) == 1
    assert "nowhere holds no run" in ended.stderr


def test_the_command_finds_the_check_that_it_runs_by_path() -> None:
    from webui import cli

    assert cli._COMPANION.is_file()


# Around the package


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")))
def test_an_issue_form_asks_for_something(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))

    if path.name == "config.yml":
        assert form == {"blank_issues_enabled": True}
    else:
        assert {"name", "description", "body"} <= set(form)
        ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
        assert len(ids) == len(set(ids)) > 0


def test_ci_and_the_hooks_before_a_commit_check_the_same() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

    names = [hook["name"] for repo in hooks["repos"] for hook in repo["hooks"]]

    assert names == ["ruff check", "ruff format", "pyright"]
    assert all(f"\n.venv/bin/{name}" in script for name in names)
    assert script.index(".venv/bin/pyright") < script.index('bash -euo pipefail -c "$command"')


def test_the_container_starts_the_command_as_an_ordinary_user() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))

    assert lines.index("USER timbre") < lines.index('ENTRYPOINT ["timbre"]')
    assert "ARG TORCH_BACKEND=cpu" in lines
    assert compose["services"]["timbre"]["ports"] == ["127.0.0.1:7860:7860"]


# Stopping the page


def _ignore_interrupts() -> None:
    """Do what a shell does before it starts a background job of a script."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signals to ignore")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_stops_cleanly_where_interrupts_were_ignored(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = ["--runs", str(tmp_path / "runs"), "--no-browser", "--no-token"]
    with subprocess.Popen(
        [sys.executable, str(ROOT / "app.py"), *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_ignore_interrupts,
    ) as process:
        assert process.stdout is not None
        started = any("Timbre runs at" in line for line in process.stdout)
        process.send_signal(number)
        process.stdout.read()
        code = process.wait(60)

    assert started
    assert code == 0
    assert list((tmp_path / "runs" / ".page").glob("work-*")) == []

"""Checkpoints of strangers and packages of strangers: what the source promises about them."""

import ast
import re
from pathlib import Path

import pytest
import torch

from tests.helpers.page_server import PROJECT
from trainer.safe_unpickle import read_pickle

_SOURCES = sorted(
    [
        *PROJECT.glob("trainer/**/*.py"),
        *PROJECT.glob("assets/**/*.py"),
        *PROJECT.glob("benchmarks/**/*.py"),
    ]
)
_OURS = {
    "benchmarks/torture.py",
    "trainer/checkpoints/checkpoint.py",
    "trainer/inference/speech_metrics.py",
    "trainer/safe_unpickle/child.py",
}
"""Who opens pickles: our own checkpoints, an optional scorer of the tests, the isolated child."""


def _calls(path: Path) -> list[ast.Call]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.fault("F6")
@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_no_pickle_is_loaded_in_full(path: Path) -> None:
    calls = {ast.unparse(call.func): call for call in _calls(path)}
    loads = [call for call in _calls(path) if ast.unparse(call.func) == "torch.load"]

    for call in loads:
        words = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert words.get("weights_only") == "True"
    assert not loads or str(path.relative_to(PROJECT)) in _OURS
    assert not {"pickle.load", "pickle.Unpickler", "joblib.load", "dill.load"} & set(calls)
    assert not any("allow_pickle=True" in ast.unparse(call) for call in calls.values())


@pytest.mark.fault("F6")
def test_a_file_of_tensors_keeps_its_shape_and_tells_what_it_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    content = {"model": {"w": torch.ones(2)}, "more": [1, {"x": torch.zeros(3)}], "text": "a"}
    content["type"] = torch.float16
    torch.save(content, tmp_path / "m.pth")

    read = read_pickle(tmp_path / "m.pth")

    assert torch.equal(read["model"]["w"], torch.ones(2))
    assert torch.equal(read["more"][1]["x"], torch.zeros(3))
    assert (read["more"][0], read["text"]) == (1, "a")
    assert "m.pth: left out, as no part of the model: type: dtype" in caplog.text


_LEAST = {"torch": (2, 10), "gradio": (6, 25), "safetensors": (0, 5), "filelock": (3, 16)}
"""The oldest without known holes: CVE-2026-24747 in torch, the last advisories of Gradio."""


@pytest.mark.fault("F13")
@pytest.mark.parametrize("name", _LEAST)
def test_no_version_with_a_known_hole_is_installed(name: str) -> None:
    text = (PROJECT / "requirements.txt").read_text(encoding="utf-8")
    wanted = re.search(rf"^{name}[=>]=(\d+)\.(\d+)", text, re.MULTILINE)

    assert wanted is not None
    assert (int(wanted[1]), int(wanted[2])) >= _LEAST[name]


@pytest.mark.fault("F13")
def test_every_package_has_a_range_that_ends() -> None:
    lines = (PROJECT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    packages = [line.split("#")[0].strip() for line in lines if line and line[0] not in "#-"]

    assert [line for line in packages if "==" not in line and "<" not in line] == []
    assert not any(line.startswith(("lightning", "pytorch-lightning")) for line in packages)
    assert not any("://" in line or line.startswith("git+") for line in packages)

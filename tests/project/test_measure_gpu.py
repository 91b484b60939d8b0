"""The one call on a GPU machine: what fails or is cut off costs its own row and no other."""

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import measure_gpu
from benchmarks.measure_gpu import OPTIMIZERS, measure_in_children, measure_optimizers

_EMPTY = {"command": "", "goals": [], "optimizers": {"rows": {}}}


def _rows(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())["optimizers"]["rows"]


def test_a_process_that_dies_loses_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = tmp_path / "gpu.json", []
    measure_gpu._write(path, _EMPTY)

    def run(command: list[str], **how: Any) -> Any:
        names = command[command.index("--only-optimizers") + 1 :]
        asked.append(names)
        report = measure_gpu._read(path)
        done = names[:2] if len(asked) == 1 else names
        report["optimizers"]["rows"] |= {name: {"ratio": 1.0} for name in done}
        measure_gpu._write(path, report)
        return SimpleNamespace(returncode=-11 if len(asked) == 1 else 0)

    monkeypatch.setattr(subprocess, "run", run)

    measure_in_children("cuda", "full", path, minutes=10.0)

    assert asked == [list(OPTIMIZERS), list(OPTIMIZERS[3:])]
    rows = _rows(path)
    assert rows[OPTIMIZERS[2]] == {"failed": "its process ended with -11"}
    assert [name for name in OPTIMIZERS if rows[name] == {"ratio": 1.0}] == [
        name for name in OPTIMIZERS if name != OPTIMIZERS[2]
    ]


def test_what_was_measured_before_time_was_up_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    measure_gpu._write(path, _EMPTY)

    def run(command: list[str], *, timeout: float, check: bool) -> Any:
        report = measure_gpu._read(path)
        report["optimizers"]["rows"]["adamw"] = {"ratio": 1.0}
        measure_gpu._write(path, report)
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)

    report = measure_in_children("cuda", "full", path, minutes=10.0)

    assert report["optimizers"]["rows"] == _rows(path) == {"adamw": {"ratio": 1.0}}


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (RuntimeError("no such kernel"), ["adamw", "soap", "muon"]),
        (torch.AcceleratorError("CUDA error: illegal access"), ["adamw", "soap"]),
    ],
)
def test_a_row_that_fails_is_told_and_ends_only_what_cannot_go_on(
    error: Exception, known: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.json"
    measure_gpu._write(path, _EMPTY)

    def time_row(state: Any, name: str) -> dict[str, float]:
        if name == "soap":
            raise error
        return {"ratio": 1.0}

    batches = SimpleNamespace(close=lambda: None)
    monkeypatch.setattr(measure_gpu, "_row_of", time_row)
    monkeypatch.setattr(measure_gpu, "measure_matmul", lambda device, is_gpu: 5.0)
    monkeypatch.setattr(
        measure_gpu, "make_setup", lambda *given: SimpleNamespace(train_batches=batches)
    )
    try:
        measure_optimizers("cpu", "tiny", path, ["adamw", "soap", "muon"])
    except torch.AcceleratorError:
        assert known[-1] == "soap"

    rows = _rows(path)
    assert list(rows) == known
    assert rows["soap"] == {"failed": str(error)}
    assert json.loads(path.read_text())["optimizers"]["matmul_tflops"] == 5.0

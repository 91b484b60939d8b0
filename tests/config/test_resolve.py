"""Settings are resolved without loading torch, and their paths are made absolute in one place."""

import subprocess
import sys
from pathlib import Path

import pytest

from trainer.config.resolve import with_absolute_paths
from trainer.core.run_config import Choice, DataConfig, RunConfig

ROOT = Path(__file__).resolve().parents[2]


def test_reading_settings_does_not_load_torch() -> None:
    program = (
        "import sys\n"
        "import trainer.config.cli_flags, trainer.config.presets, trainer.config.resolve\n"
        "print('torch' in sys.modules)"
    )

    found = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert found.stdout.strip() == "False"


def test_paths_hold_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    family = Choice("fastspeech2", {"ctc_model": "ctc.pt", "vocoder": "pulse"})
    config = RunConfig(data=DataConfig(train_csv="a.csv"), base="base", family=family)

    absolute = with_absolute_paths(config)

    assert absolute.data.train_csv == str(tmp_path / "a.csv")
    assert absolute.data.eval_csv == ""
    assert absolute.base == str(tmp_path / "base")
    assert absolute.family.options == {
        "ctc_model": str(tmp_path / "ctc.pt"),
        "vocoder": "pulse",
    }


def test_typed_paths_may_start_at_another_folder() -> None:
    config = RunConfig(data=DataConfig(train_csv=" a.csv ", eval_csv=" "))

    absolute = with_absolute_paths(config, lambda path: f"/home/somebody/{path}")

    assert absolute.data.train_csv == "/home/somebody/a.csv"
    assert absolute.data.eval_csv == ""

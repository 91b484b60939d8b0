"""Run folders of earlier versions still open, resume and export."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trainer import Run
from trainer.inference.synthesis import export_voice

ROOT = Path(__file__).resolve().parent.parent.parent
MUSEUM = ROOT / "tests" / "museum" / "runs-0.1.0"
WRITTEN_IN = "/srv/timbre"
"""Where the checkout lay that wrote the folders."""
FAMILIES = ("fastspeech2", "xtts", "indextts2")


@pytest.fixture(params=FAMILIES)
def run(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A copy of an old run, its lists beside it and every path where this checkout has it."""
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "cache"))
    lists = shutil.copytree(MUSEUM, tmp_path / "museum", ignore=shutil.ignore_patterns(*FAMILIES))
    folder = shutil.copytree(MUSEUM / request.param, tmp_path / "run")
    (folder / "control").mkdir()  # empty, so git does not keep it
    written = [*lists.glob("*.csv"), folder / "run.json", folder / "clips.json"]
    for path in (*written, *folder.glob("checkpoints/*/manifest.json")):
        text = path.read_text(encoding="utf-8")
        text = text.replace(f"{WRITTEN_IN}/tests/museum/runs-0.1.0", str(lists))
        path.write_text(text.replace(WRITTEN_IN, str(ROOT)), encoding="utf-8")
    return Run.open(folder)


def test_an_old_run_opens_resumes_and_exports(run: Run, tmp_path: Path) -> None:
    before = run.status()
    assert (before.state, before.step, before.total_steps) == ("finished", 6, 6)

    words = [sys.executable, "-m", "trainer", "resume", str(run.folder), "--more-steps", "2"]
    resumed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    voice = export_voice(run, tmp_path / "voice")

    after = run.status()
    assert (after.state, after.step, after.total_steps) == ("finished", 8, 8)
    assert run.series().last_step == 8
    assert [each.folder.name for each in run.checkpoints()] == ["step-00000008"]
    assert [path for path in voice.iterdir() if path.suffix in (".pth", ".safetensors")]

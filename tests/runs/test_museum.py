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


_COUNTED_START = """
import collections, json, os, sys
from trainer.commands.main import main
from trainer.core.events import EventLog, RunStarted

opened = collections.Counter()

def count(event, found):
    if event == "open" and isinstance(found[0], str) and not set(found[1] or "") & set("wax+"):
        opened[os.path.basename(found[0])] += 1

append = EventLog.append

def append_and_tell(log, event):
    if isinstance(event, RunStarted):
        print(json.dumps({name: opened[name] for name in ("run.json", "events.jsonl")}))
    append(log, event)

EventLog.append = append_and_tell
sys.addaudithook(count)
main(["resume", sys.argv[1]])
"""


@pytest.mark.parametrize("run", ["fastspeech2"], indirect=True)
def test_a_start_reads_the_configuration_and_the_log_once(run: Run) -> None:
    run.request_steps(7)

    words = [sys.executable, "-c", _COUNTED_START, str(run.folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout.splitlines()[:1] == ['{"run.json": 1, "events.jsonl": 1}'], done.stderr
    assert run.status().step == 7


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

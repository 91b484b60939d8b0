"""Launchers: a run is sent somewhere, asked about, taken back; its own folder tells the rest."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer import Run, RunConfig
from trainer.commands.launch import COMMAND
from trainer.core.errors import ConfigError, RunError, RunNotFound
from trainer.core.events import StepDone
from trainer.core.registry import discover
from trainer.core.run_config import DataConfig
from trainer.launchers import local, slurm
from trainer.launchers._launcher import Launcher, Resources, read_handle

_TRAINER = """
import fcntl, json, os, time
lock = open("owner.lock", "a")
fcntl.flock(lock, fcntl.LOCK_EX)
while not os.path.exists("control/stop"):
    time.sleep(0.01)
end = {"time": time.time(), "type": "RunFinished", "outcome": "stopped", "step": 1}
with open("events.jsonl", "a") as file:
    file.write(json.dumps(end) + "\\n")
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run whose process waits for Stop."""
    monkeypatch.setattr(Run, "command", lambda run: [sys.executable, "-S", "-c", _TRAINER])
    return Run.create(tmp_path / "voice", RunConfig())


def _launch(*words: object) -> list[str]:
    told: list[str] = []
    parser = argparse.ArgumentParser(allow_abbrev=False)
    assert COMMAND.run(parser, list(map(str, words)), told.append) == 0
    return told


def test_there_are_two_launchers() -> None:
    assert list(discover("trainer.launchers", Launcher)) == ["local", "slurm"]


def test_a_run_is_sent_to_this_machine_asked_about_stopped_and_waited_for(run: Run) -> None:
    sent = _launch("--run", run.folder)
    asked = _launch("--run", run.folder, "--status")
    _launch("--run", run.folder, "--cancel")
    ended = _launch("--run", run.folder, "--attach")

    assert sent[0] == "voice was submitted to: This machine."
    assert asked[0].startswith("This machine: running. voice: start")
    assert ended == ["This machine: ended. voice: stopped, step 0."]
    assert read_handle(run.folder).launcher == "local"


def test_what_a_run_trains_is_not_changed_by_sending_it(run: Run) -> None:
    with pytest.raises(ConfigError, match="Leave out: --steps 5"):
        _launch("--run", run.folder, "--steps", 5)
    with pytest.raises(RunNotFound, match="was not submitted"):
        _launch("--run", run.folder, "--status")
    with pytest.raises(ConfigError, match="uses only this one"):
        local.submit(run, Resources(nodes=2, gpus=2))


def test_a_new_run_is_made_before_it_is_sent(tmp_path: Path, run: Run) -> None:
    (tmp_path / "clips.csv").write_text("a.wav|Hello.\n")

    _launch("--run", tmp_path / "new", "--train-csv", tmp_path / "clips.csv", "--gpus", 2)
    made = Run.open(tmp_path / "new")
    _launch("--run", made.folder, "--cancel")
    made.wait()

    assert made.config.data == DataConfig(train_csv=str(tmp_path / "clips.csv"))
    assert made.num_processes == 2


def test_gpus_are_shared_evenly() -> None:
    assert Resources(nodes=2, gpus=8).gpus_per_node == 4
    with pytest.raises(ConfigError, match="3 GPUs cannot be divided evenly among 2"):
        Resources(nodes=2, gpus=3)


def test_without_slurm_a_run_stays_here(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(RunError, match="Slurm was not found on this machine"):
        slurm.submit(run, Resources())


# A job is meant to outlive the object that sent it.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_job_carries_out_the_one_command_of_a_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent.parent))
    handle = slurm.submit(run, Resources(gpus=1), cluster="local")
    (run.folder / "run.json").rename(run.folder / "lost.json")  # so that it ends at once

    before = slurm._job(run, handle)
    result = before.result()
    slurm.attach(run, handle)
    said = "".join(path.read_text() for path in (run.folder / "control/jobs").glob("*_log.err"))

    assert result == 1
    assert slurm.status(run, handle) == "ended"
    assert f"{run.folder} holds no run" in said


_FAKE_SBATCH = '#!/bin/sh\ncp "$1" "$0.asked"\necho Submitted batch job 1234\n'


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of commands as on a Slurm cluster: jobs are taken, and nothing is known of them."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in (("sbatch", _FAKE_SBATCH), ("srun", ""), ("sacct", ""), ("scancel", "")):
        script = text or '#!/bin/sh\necho "$@" > "$0.asked"\n'
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    yield folder


def test_a_cluster_is_asked_for_what_the_run_needs(run: Run, cluster: Path) -> None:
    handle = slurm.submit(run, Resources(2, 8, 12.0, 4, 64, "gpu"))
    slurm.cancel(run, handle)

    asked = (cluster / "sbatch.asked").read_text()
    assert handle.values == {"job": "1234", "cluster": "slurm"}
    for words in ("--nodes=2", "--gpus-per-node=4", "--time=720", "--mem=64GB", "--partition=gpu"):
        assert words in asked
    assert "export PYTHONPATH=" in asked
    assert "1234" in (cluster / "scancel.asked").read_text()


def test_a_run_that_trains_on_a_cluster_is_stopped_with_a_save(run: Run, cluster: Path) -> None:
    handle = slurm.submit(run, Resources())
    lock = run.take()
    run.events.append(StepDone(1, {}))

    slurm.cancel(run, handle)
    requests = run.requests()
    lock.release()

    assert requests == {"stop"}
    assert not (cluster / "scancel.asked").exists()


def test_every_machine_of_a_job_joins_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    submitit: Any = pytest.importorskip("submitit")
    second = SimpleNamespace(node=1, hostnames=["first", "second"], job_id="12")
    monkeypatch.setattr(submitit, "JobEnvironment", lambda: second)

    words = slurm.TrainOnNode("/share/voice", 2, 4).command()
    again = slurm.TrainOnNode("/share/voice", 2, 4).checkpoint()

    assert " ".join(words[1:]) == (
        "-m torch.distributed.run --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d "
        "--rdzv-endpoint first:29400 --rdzv-id 12 --rdzv-conf is_host=0 --max-restarts 3 "
        "-m trainer resume /share/voice"
    )
    assert isinstance(again, submitit.helpers.DelayedSubmission)

"""One real run, from a CSV to speech: the command line as a user types it, on clips of the demo."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile
from safetensors.torch import load_file

from tests.helpers.holding import hold
from trainer import Run
from trainer.commands.main import main

DEMO = Path(__file__).parent.parent.parent / "assets" / "demo"
STEPS = 14
CANARIES = {
    "HF_TOKEN": "hf_canary71c2",
    "WANDB_API_KEY": "wandb-canary71c2",
    "AWS_SECRET_ACCESS_KEY": "aws/canary71c2",
    "AWS_SESSION_TOKEN": "session-canary71c2",
    "TIMBRE_AUTH": "ada:page-canary71c2",
    "OPENAI_API_KEY": "sk-canary71c2",
}
"""What a process that trains finds in its environment and has to keep to itself."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with two small CSVs of demo clips and a feature cache of its own.

    Whatever is done there, with secrets in the environment, must leave none of them in a file.
    """
    folder = tmp_path_factory.mktemp("end-to-end")
    for name, count in (("train", 12), ("eval", 3)):
        with (DEMO / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, delimiter="|"))
        lines = ["|".join(rows[0])]
        lines += ["|".join([str(DEMO / row[0]), *row[1:]]) for row in rows[1 : count + 1]]
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (CANARIES | {"TIMBRE_CACHE": str(folder / "cache")}).items():
            patch.setenv(name, value)
        yield folder
    assert _files_with_secrets(folder) == []


def _files_with_secrets(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {".jsonl", ".safetensors", ".txt"} <= {path.suffix for path in files}
    return [path for path in files if b"canary71c2" in path.read_bytes()]


def _start(
    words: list[object], stdout: int = subprocess.DEVNULL, **environment: str
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "trainer", *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        stdout=stdout,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _timbre(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "trainer", *map(str, words)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=600
    )


def _train_words(folder: Path, name: str) -> list[object]:
    return [
        "train", "--train-csv", folder / "train.csv", "--eval-csv", folder / "eval.csv", "--run",
        folder / name, "--steps", STEPS, "--batch-size", 4, "--save-every", 4, "--validate-every",
        "5 steps",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def whole(folder: Path) -> Run:
    """A run that nothing disturbs."""
    result = _timbre(*_train_words(folder, "whole"))
    assert result.returncode == 0, result.stderr[-2000:]
    return Run.open(folder / "whole")


def _losses(run: Run) -> list[float]:
    return list(run.series().steps.columns["train/loss"])


def test_a_run_finishes_with_falling_loss_previews_and_checkpoints(whole: Run) -> None:
    status = whole.status()
    losses = _losses(whole)

    assert (status.state, status.step) == ("finished", STEPS)
    assert sum(losses[-3:]) < sum(losses[:3])
    assert whole.previews()
    assert whole.checkpoints()[-1].step == STEPS
    assert status.metrics["perf/s_per_step"] > 0
    assert set(status.optimizations) >= {"sdpa", "mixed_precision", "gradient_checkpointing"}


def test_stop_and_resume_give_the_losses_of_an_undisturbed_run(folder: Path, whole: Run) -> None:
    process, run, trainer = hold(
        lambda: _start(_train_words(folder, "stopped")),
        folder / "stopped",
        lambda run: run.series().last_step > 0,
    )

    stopping = _start(["stop", run.folder, "--wait"])
    while stopping.poll() is None and not run.requests():
        time.sleep(0.01)
    os.kill(trainer, signal.SIGCONT)
    codes = [each.wait(timeout=300) for each in (stopping, process)]
    stopped_at = run.status().step
    assert _timbre("resume", run.folder).returncode == 0

    assert codes == [0, 10]
    assert 0 < stopped_at < STEPS
    assert _losses(run) == _losses(whole)


@pytest.mark.fault("A1")
def test_a_killed_run_resumes_to_the_same_losses(folder: Path, whole: Run) -> None:
    process, run, _ = hold(
        lambda: _start(_train_words(folder, "killed")),
        folder / "killed",
        lambda run: bool(run.checkpoints()),
    )

    process.send_signal(signal.SIGKILL)
    process.wait()
    interrupted = run.wait(poll_s=0.01).state
    assert _timbre("resume", run.folder).returncode == 0

    assert interrupted == "interrupted"
    assert _losses(run) == _losses(whole)
    weights = load_file(run.checkpoints()[-1].folder / "model.safetensors")
    expected = load_file(whole.checkpoints()[-1].folder / "model.safetensors")
    assert all(bool((weights[name] == expected[name]).all()) for name in expected)


@pytest.mark.fault("A8", "F15")
def test_a_crash_leaves_its_stack_in_the_log_and_no_secret(folder: Path) -> None:
    process, run, trainer = hold(
        lambda: _start(
            _train_words(folder, "crashed"), stdout=subprocess.PIPE, TIMBRE_RESTARTS="0"
        ),
        folder / "crashed",
        lambda run: run.series().last_step > 0,
    )

    for number in (signal.SIGSEGV, signal.SIGCONT):
        os.kill(trainer, number)
    said, _ = process.communicate(timeout=300)

    log = (run.folder / "log.txt").read_text(encoding="utf-8")
    assert process.returncode == 128 + 11
    assert "Segmentation fault" in log and "trainer/training/loop.py" in log
    assert "canary71c2" not in said
    assert _files_with_secrets(folder) == []


def test_the_voice_speaks_and_travels(
    folder: Path, whole: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    spoken = _timbre(
        "synthesize", whole.folder, "--text", "Hello there.", "--out", folder / "x.wav"
    )
    exported = _timbre("export", whole.folder, "--out", folder / "export")
    again = main(["export", str(whole.folder), "--out", str(folder / "export")])

    wave, sample_rate = soundfile.read(folder / "x.wav")
    assert spoken.returncode == 0, spoken.stderr
    assert 0.2 < len(wave) / sample_rate < 20
    assert abs(wave).max() > 0.01
    assert exported.returncode == 0, exported.stderr
    assert {"model.safetensors", "config.json"} <= {p.name for p in (folder / "export").iterdir()}
    assert again == 1
    assert "exists already" in capsys.readouterr().err
    # Also in a process of its own: another number of threads would round differently.
    words = ["synthesize", str(folder / "export"), "--text", "Hello there."]
    travelled = _timbre(*words, "--out", folder / "travelled.wav")
    assert travelled.returncode == 0, travelled.stderr
    assert soundfile.read(folder / "travelled.wav")[0].tolist() == wave.tolist()
    assert main([*words, "--out", str(folder / "none.wav"), "--checkpoint", "last,4"]) == 1
    assert "holds one checkpoint" in capsys.readouterr().err
    (folder / "export" / "config.json").write_text('{"family": "fastspeech2"}')
    assert main([*words, "--out", str(folder / "none.wav")]) == 1
    assert "does not describe a voice" in capsys.readouterr().err


def test_a_voice_is_heard_while_it_speaks(
    folder: Path, whole: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("synthesize", whole.folder, "--text", "Hello there. Good morning.")
    spoken = _timbre(*words, "--out", folder / "whole.wav")
    streamed = _timbre(*words, "--out", folder / "deep" / "streamed.wav", "--stream")
    with pytest.raises(SystemExit):
        main([*map(str, words), "--out", "-"])

    wave, rate = soundfile.read(folder / "whole.wav", dtype="int16")
    live, live_rate = soundfile.read(folder / "deep" / "streamed.wav", dtype="int16")
    assert spoken.returncode == 0, spoken.stderr
    assert "First sound after" in streamed.stderr
    assert (live.tolist(), live_rate) == (wave.tolist(), rate)
    assert "works only with --stream" in capsys.readouterr().err


def test_an_export_is_a_base_for_the_next_run(folder: Path, whole: Run) -> None:
    if not (folder / "export-base").exists():
        _timbre("export", whole.folder, "--out", folder / "export-base")
    words = _train_words(folder, "tuned")

    result = _timbre(*words, "--base", folder / "export-base", "--steps", 3)

    assert result.returncode == 0, result.stderr[-2000:]
    assert _losses(Run.open(folder / "tuned"))[0] < _losses(whole)[0]


def test_check_prints_the_ledger_and_its_exit_code(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = folder / "bad.csv"
    bad.write_text("audio_file|text|speaker_name\nnowhere.wav|Hello.|a\n", encoding="utf-8")

    good_result = _timbre("check", "--train-csv", folder / "train.csv", "--json")
    bad_code = main(["check", "--train-csv", str(bad)])

    assert good_result.returncode == 0
    assert len(json.loads(good_result.stdout)["clips"]) == 12
    assert bad_code == 1
    assert "nowhere.wav" in capsys.readouterr().out


def test_every_optimization_that_works_here_is_on_when_asked_for(folder: Path) -> None:
    words = _train_words(folder, "optimized")

    result = _timbre(
        *words, "--steps", 2, "--blocks", "transformer", "--sdpa", "--gradient-checkpointing",
        "--mixed-precision", "bf16",
    )  # fmt: skip
    states = Run.open(folder / "optimized").status().optimizations

    assert result.returncode == 0, result.stderr[-2000:]
    on = {name for name, state in states.items() if state["on"]}
    assert on == {"sdpa", "gradient_checkpointing", "mixed_precision"}

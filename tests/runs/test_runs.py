"""Runs: folders that are never overwritten, one owner, states derived from what is there."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from trainer import Run, RunConfig
from trainer.core.errors import RunError, RunExists, RunNotFound, RunOwned
from trainer.core.events import RunFinished, RunStarted, StepDone
from trainer.runs import locks, restart_policy
from trainer.runs.locks import acquire_lock
from trainer.runs.restart_policy import SUPERVISOR_LOCK, explain_exit
from trainer.runs.run_store import RunStore, TrainerThread, free_name

_OWNER = """
import sys, time
from trainer import Run
lock = Run.open(sys.argv[1]).take()
print("owned", flush=True)
time.sleep(600)
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "voice", RunConfig())


def _owner_of(run: Run) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", _OWNER, str(run.folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "owned\n"
    return process


def test_a_run_folder_is_never_overwritten(run: Run) -> None:
    with pytest.raises(RunExists, match="never overwritten"):
        Run.create(run.folder, RunConfig())


def test_a_folder_without_a_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="holds no run"):
        Run.open(tmp_path)


def test_the_configuration_reads_back_equal(run: Run) -> None:
    assert Run.open(run.folder).config == RunConfig()


def test_a_fresh_run_is_created_and_not_owned(run: Run) -> None:
    assert (run.status().state, run.is_owned()) == ("created", False)


@pytest.mark.fault("A10")
def test_ownership_ends_with_the_process_that_holds_it(run: Run) -> None:
    owner = _owner_of(run)

    owned_before = run.is_owned()
    with pytest.raises(RunOwned, match="another process"):
        run.take()
    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    assert owned_before
    assert not run.is_owned()
    run.take().release()


def test_a_run_starts_again_once_the_supervisor_of_its_last_start_has_gone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "command", lambda run: [sys.executable, "-c", ""])
    watched = acquire_lock(run.folder / "control" / SUPERVISOR_LOCK)
    assert watched is not None

    monkeypatch.setattr("trainer.runs.process._ENDING_S", 0.0)
    with pytest.raises(RunOwned, match="trained already"):
        run.start()

    def wait_for_its_end(path: Path, *, timeout_s: float) -> Any:
        watched.release()
        return acquire_lock(path, timeout_s=timeout_s)

    monkeypatch.setattr(restart_policy, "acquire_lock", wait_for_its_end)
    assert run.start().wait() == 0


@pytest.mark.fault("A1")
def test_a_killed_process_leaves_an_interrupted_run(run: Run) -> None:
    owner = _owner_of(run)
    run.events.append(RunStarted(1, 10, 5))
    run.events.append(StepDone(1, {"train/loss": 1.0}))
    while_running = run.status().state

    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    assert while_running == "running"
    assert run.status().state == "interrupted"
    assert "Resume" in run.status().remedy


def test_a_stop_request_shows_as_stopping_while_the_process_lives(run: Run) -> None:
    owner = _owner_of(run)
    run.events.append(RunStarted(1, 10, 5))

    run.request("stop")
    state = run.status().state
    owner.kill()
    owner.communicate()

    assert state == "stopping"


def test_how_a_run_ended_is_its_state(run: Run) -> None:
    run.events.append(RunStarted(1, 10, 5))
    run.events.append(RunFinished("failed", 3, "The device ran out of memory.", "Halve the batch."))

    status = run.status()

    assert (status.state, status.reason) == ("failed", "The device ran out of memory.")


def test_unknown_requests_are_refused(run: Run) -> None:
    with pytest.raises(RunError, match="Unknown request"):
        run.request("explode")


def test_requests_wait_until_they_are_answered(run: Run) -> None:
    run.request("save")
    waiting = run.requests()
    run.answer("save")

    assert (waiting, run.requests()) == ({"save"}, set())


@pytest.mark.fault("B7")
def test_checkpoints_without_a_manifest_are_not_listed(run: Run) -> None:
    whole = run.folder / "checkpoints" / "step-00000002"
    torn = run.folder / "checkpoints" / "step-00000003"
    whole.mkdir()
    torn.mkdir()
    (whole / "manifest.json").write_text(json.dumps({"step": 2, "best": True}))
    (torn / "manifest.json").write_text("{")

    assert [(info.step, info.best) for info in run.checkpoints()] == [(2, True)]


def test_a_library_lists_the_newest_run_first_and_refuses_odd_names(tmp_path: Path) -> None:
    library = RunStore(tmp_path / "runs")
    for age, name in enumerate(("old", "new")):
        folder = Run.create(library.folder / name, RunConfig()).folder
        (folder / "run.json").touch()
        stamp = 1_000_000 + age
        subprocess.run(["touch", "-d", f"@{stamp}", str(folder / "run.json")], check=True)

    assert library.names() == ["new", "old"]
    for name in ("../runs/new", "", ".", "/etc", "new\0", ["new"], {"new": 1}, None):
        with pytest.raises(RunNotFound):
            library.get(name)  # type: ignore[arg-type]  # a browser sends what it likes


def _long_run(folder: Path, steps: int) -> Run:
    run = Run.create(folder, RunConfig())
    run.events.append(RunStarted(1, steps, 5))
    line = '{"time": 1.0, "type": "StepDone", "step": %d, "metrics": {"train/loss": 1.0}}\n'
    with run.events.path.open("a", encoding="utf-8") as file:
        file.writelines(line % step for step in range(1, steps + 1))
    run.events.append(RunFinished("finished", steps))
    return run


def test_one_run_is_found_without_a_look_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = RunStore(tmp_path / "runs")
    _long_run(library.folder / "voice", 5)
    monkeypatch.setattr(RunStore, "names", None)

    assert library.get("voice").name == "voice"
    assert library.status("voice").state == "finished"


def test_metrics_stay_in_memory_up_to_a_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = RunStore(tmp_path / "runs")
    for name in ("a", "b", "c"):
        _long_run(library.folder / name, 100)
    size = library.series("a").num_bytes
    monkeypatch.setattr("trainer.runs.run_store._KEPT_BYTES", 2 * size)

    kept = {name: library.series(name) for name in ("a", "b", "c")}

    assert library.series("c") is kept["c"]
    assert library.series("b") is kept["b"]
    assert library.series("a") is not kept["a"]


def test_a_status_keeps_the_metrics_of_no_idle_run(tmp_path: Path) -> None:
    library = RunStore(tmp_path / "runs")
    _long_run(library.folder / "voice", 3000)

    status, store = library.look_at("voice")

    assert (status.step, store.is_whole) == (3000, False)
    assert library.look_at("voice")[1] is not store
    assert library.series("voice").steps.count == 3000


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("my voice", "my-voice"),
        ("../../etc", "etc"),
        ("목소리", "목소리"),
        ("...", "run"),
        ("a/b", "a-b"),
    ],
)
@pytest.mark.fault("B14")
def test_run_names_become_safe_folder_names(tmp_path: Path, wanted: str, expected: str) -> None:
    assert free_name(tmp_path, wanted) == expected


def test_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    (tmp_path / "voice").mkdir()

    assert free_name(tmp_path, "voice") == "voice-2"


class _DyingRun(Run):
    """A run whose process prints a line and ends with code 3."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", "print('disk on fire'); raise SystemExit(3)"]


def test_the_trainer_thread_explains_a_process_that_ended_without_a_word(run: Run) -> None:
    dying = _DyingRun(run.folder)
    thread = TrainerThread(dying, dying.series(), start_process=True)

    thread.start()
    thread.join(timeout=300)
    status = run.status()

    assert status.state == "failed"
    assert "code 3: disk on fire" in status.reason


class _SleepingRun(Run):
    """A run whose process lives for a while without taking the lock."""

    def command(self) -> list[str]:
        return [sys.executable, "-c", "import time; time.sleep(600)"]


def test_a_spawned_process_shows_as_starting(run: Run) -> None:
    process = _SleepingRun(run.folder).start()

    state = run.status().state
    process.kill()
    process.wait()

    assert state == "starting"


def test_a_process_killed_by_a_signal_is_named_so() -> None:
    reason, remedy = explain_exit(-9, "")

    assert "signal 9" in reason
    assert "memory" in reason
    assert "Resume" in remedy


@pytest.mark.fault("A9")
def test_five_owners_at_once_leave_one(run: Run) -> None:
    source = (
        "import sys\nfrom trainer import Run\nfrom trainer.core.errors import RunOwned\n"
        "try:\n    lock = Run.open(sys.argv[1]).take()\n    print('owned', flush=True)\n"
        "except RunOwned:\n    print('refused', flush=True)\nsys.stdin.readline()\n"
    )
    command, pipe = [sys.executable, "-c", source, str(run.folder)], subprocess.PIPE

    processes = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(5)]
    # Whoever owns it keeps it until all have tried.
    said = [process.stdout.readline() for process in processes if process.stdout]
    for process in processes:
        process.communicate("\n")

    assert sorted(said) == ["owned\n", *["refused\n"] * 4]


def test_who_asks_whether_a_run_is_owned_keeps_no_owner_out(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run.folder / "owner.lock"
    asking = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(asking, fcntl.LOCK_SH)
    ask = locks.is_locked

    def ask_and_let_the_other_end(path: Path) -> bool:
        answer = ask(path)
        os.close(asking)
        return answer

    monkeypatch.setattr(locks, "is_locked", ask_and_let_the_other_end)

    run.take().release()


def test_last_words_that_come_between_two_looks_count(run: Run) -> None:
    series = run.series()
    run.events.append(RunStarted(1, 10, 5))
    run.events.append(RunFinished("finished", 10))

    assert run.status(series).state == "finished"


def test_requests_meant_for_an_earlier_process_are_dropped(run: Run) -> None:
    run.request("stop")
    run.drop_requests_before(0.0)
    kept = run.requests()

    run.drop_requests_before(time.time() + 60)

    assert (kept, run.requests()) == ({"stop"}, set())

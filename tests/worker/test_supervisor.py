"""The supervisor: what is struck down is started again, what a person ended is not."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from trainer import Run, RunConfig
from trainer.core.events import Notice, RunFinished, RunStarted, StepDone
from trainer.runs.heartbeat import Heartbeat, end_orphans, read_pulses
from trainer.runs.locks import ProcessIdentity, boot_id, kill_tree
from trainer.runs.restart_policy import Ending, RestartPolicy, explain_exit, write_ending
from trainer.worker.log_rotation import cap_log
from trainer.worker.supervisor import Supervisor, needs_supervisor
from trainer.worker.training_process import explain_failure

_AT_ONCE = RestartPolicy(most=2, waits_s=(0.0,))
_CHILD = """
import faulthandler, json, os, signal, sys, time
folder, ends = sys.argv[1], sys.argv[2].split()
def say(**event):
    with open(folder + "/events.jsonl", "a") as file:
        file.write(json.dumps({"time": time.time(), **event}) + "\\n")
with open(folder + "/starts", "a") as file:
    file.write("x")
end = ends[min(os.path.getsize(folder + "/starts"), len(ends)) - 1]
with os.fdopen(int(os.environ["TIMBRE_REPORT"]), "w") as pipe:
    offset = os.path.getsize(folder + "/events.jsonl")
    pipe.write(json.dumps({"folder": folder, "processes": int(sys.argv[3]), "offset": offset}))
if end == "dump":
    faulthandler.register(signal.SIGUSR1, open(folder + "/log.txt", "w"))
    from trainer.runs.heartbeat import Heartbeat
    from trainer.runs.locks import ProcessIdentity
    from pathlib import Path
    Heartbeat(Path(folder), ProcessIdentity.of(os.getpid())).check()
    os.utime(folder + "/control/heartbeat-0", (1, 1))
    while not os.path.getsize(folder + "/log.txt"):
        time.sleep(0.01)
    end = "0"
say(type="StepDone", step=7, metrics={})
while end == "wait":
    time.sleep(0.01)
    if os.path.exists(folder + "/control/stop") and not os.path.exists(folder + "/deaf"):
        say(type="RunFinished", outcome="stopped", step=8)
        sys.exit(10)
if end == "0":
    say(type="RunFinished", outcome="finished", step=9)
elif end in ("20", "30"):
    say(type="RunFinished", outcome="failed", step=7, reason="The GPU failed.")
if end.startswith("-"):
    os.kill(os.getpid(), -int(end))
sys.exit(int(end))
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """A run, and the signals of this process as they were before a supervisor took them."""
    kept = {number: signal.getsignal(number) for number in (2, 15, 1)}
    yield Run.create(tmp_path / "voice", RunConfig())
    for number, handler in kept.items():
        signal.signal(number, handler)


def _supervise(run: Run, ends: str, policy: RestartPolicy = _AT_ONCE, processes: int = 1) -> int:
    """Train with a child whose starts end one after the other as `ends` says."""
    command = [sys.executable, "-S", "-c", _CHILD, str(run.folder), ends, str(processes)]
    if "dump" in ends:
        command.remove("-S")
    return Supervisor(command, policy, lambda folder: command).run()


def _starts(run: Run) -> int:
    return len((run.folder / "starts").read_text())


def _notices(run: Run) -> list[str]:
    return [each.event.text for each in run.events.follow() if isinstance(each.event, Notice)]


def _later(deed: Callable[[], None], is_time: Callable[[], bool]) -> threading.Thread:
    def wait() -> None:
        deadline = time.monotonic() + 120
        while not is_time() and time.monotonic() < deadline:
            time.sleep(0.01)
        deed()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.fault("A1", "A7")
def test_a_killed_process_is_started_again_and_the_log_says_what_memory_there_was(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(percent=98.0))

    code = _supervise(run, "-9 0")

    assert (code, _starts(run), run.status().state) == (0, 2, "finished")
    (told,) = _notices(run)
    assert "killed by signal 9" in told
    assert "Restarting in" in told
    assert "(1 of 2)" in told


@pytest.mark.fault("A7")
def test_a_process_killed_for_want_of_memory_is_explained_by_it() -> None:
    reason, remedy = explain_exit(-9, "", 98.2)

    assert reason == "The training process was killed by signal 9, host memory was 98 % full."
    assert "Resume" in remedy


@pytest.mark.fault("E8")
def test_a_lost_gpu_is_started_again_until_the_policy_has_enough(run: Run) -> None:
    code = _supervise(run, "30")

    status = run.status()
    assert (code, _starts(run), len(_notices(run))) == (30, 3, 2)
    assert (status.state, status.step) == ("failed", 7)
    assert "The GPU failed. The run was restarted 2 times" in status.reason


@pytest.mark.fault("E8")
@pytest.mark.parametrize(
    "error",
    [
        type("AcceleratorError", (RuntimeError,), {})("device-side assert triggered"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm"),
    ],
)
def test_an_error_that_sticks_to_the_device_asks_for_a_new_process(error: Exception) -> None:
    reason, _, code = explain_failure(error)

    assert code == 30
    assert reason.startswith("The GPU failed")


def test_the_reason_of_a_process_that_ended_before_it_was_met_is_kept(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            started.append(self)

    class Late(Supervisor):
        def _read_report(self, told: bytes | None) -> None:
            if started[0].returncode is None:  # Its end, not taken note of yet.
                os.waitid(os.P_PID, started[0].pid, os.WEXITED | os.WNOWAIT)
            super()._read_report(told)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    command = [sys.executable, "-S", "-c", _CHILD, str(run.folder), "20", "1"]
    code = Late(command, _AT_ONCE).run()

    assert (code, run.status().reason) == (20, "The GPU failed.")


@pytest.mark.parametrize("end", ["20", "-15", "75"])
def test_what_needs_a_person_is_not_started_again(run: Run, end: str) -> None:
    code = _supervise(run, end)

    assert (code, _starts(run)) == (128 + 15 if end == "-15" else int(end), 1)


def test_the_pauses_grow_and_an_hour_later_the_count_begins_anew() -> None:
    policy = RestartPolicy()

    pauses = [policy.wait_s([0.0, 100.0, 200.0][:count], 300.0) for count in range(4)]

    assert pauses == [2.0, 15.0, 60.0, None]
    assert policy.wait_s([0.0, 100.0, 200.0], 3601.0) == 60.0


@pytest.mark.fault("A11")
def test_stop_is_heard_while_a_run_waits_to_be_started_again(run: Run) -> None:
    patient = RestartPolicy(waits_s=(60.0,))
    seen: list[str] = []

    def stop() -> None:
        seen.append(run.status().state)
        run.request("stop")

    thread = _later(stop, lambda: bool(_notices(run)))
    code = _supervise(run, "-9 0", patient)
    thread.join()

    assert (code, _starts(run), seen) == (10, 1, ["starting"])
    assert run.status().state == "stopped"


@pytest.mark.fault("A6", "A11")
def test_a_person_ends_a_process_that_does_not_answer(run: Run) -> None:
    (run.folder / "deaf").touch()

    thread = _later(lambda: run.request("kill"), lambda: run.series().last_step == 7)
    code = _supervise(run, "wait")
    thread.join()

    status = run.status()
    assert (code, _starts(run), status.state) == (10, 1, "stopped")
    assert "without a last checkpoint" in status.reason
    assert run.requests() == set()


@pytest.mark.fault("A12")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_a_stop_and_a_second_one_ends_at_once(run: Run, number: int) -> None:
    is_deaf = number == signal.SIGINT
    if is_deaf:
        (run.folder / "deaf").touch()

    def send() -> None:
        os.kill(os.getpid(), number)
        deadline = time.monotonic() + 120
        while "stop" not in run.requests() and time.monotonic() < deadline:
            time.sleep(0.01)
        if is_deaf:
            os.kill(os.getpid(), number)

    thread = _later(send, lambda: run.series().last_step == 7)
    code = _supervise(run, "wait")
    thread.join()

    finished = run.series().finished
    assert finished is not None
    assert (code, finished.outcome, finished.step) == (10, "stopped", 7 if is_deaf else 8)


@pytest.mark.fault("A6")
def test_a_hung_process_writes_down_where_it_is(run: Run) -> None:
    code = _supervise(run, "dump")

    assert code == 0
    assert "most recent call first" in (run.folder / "log.txt").read_text()


def test_one_lost_process_of_several_starts_all_again_and_a_word_of_one_counts(run: Run) -> None:
    lost = _supervise(run, "1 0", processes=2)
    leave = Ending(20, "Process 1 ran out of memory.")
    (run.folder / "starts").unlink()

    class Leaving(Supervisor):
        def _read_report(self, told: bytes | None) -> None:
            super()._read_report(told)
            if told:
                write_ending(run.folder, leave, 1)

    command = [sys.executable, "-S", "-c", _CHILD, str(run.folder), "1", "2"]
    told = Leaving(command, _AT_ONCE).run()

    assert (lost, told, _starts(run)) == (0, 20, 1)
    assert run.status().reason == "Process 1 ran out of memory."


@pytest.mark.fault("A10")
def test_a_process_number_given_to_another_process_is_nobody() -> None:
    alive = ProcessIdentity.of(os.getpid())
    assert alive is not None

    assert alive.is_alive
    for other in (
        ProcessIdentity(alive.pid, alive.started_at - 100, alive.boot),
        ProcessIdentity(alive.pid, alive.started_at, "another boot"),
    ):
        kill_tree(other)  # would end this test
        assert not other.is_alive


@pytest.mark.fault("A10")
def test_a_left_word_of_an_owner_is_not_taken_for_the_owner(run: Run) -> None:
    run.write_owner()
    lock = run.take()
    mine = run.owner()
    left = {"pid": 1, "started_at": 1.0, "boot": boot_id()}
    (run.folder / "owner.json").write_text(json.dumps(left))
    stale = run.owner()
    lock.release()

    assert mine == ProcessIdentity.of(os.getpid())
    assert stale is None


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that only sleeps."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
    yield process
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()


@pytest.mark.fault("A10")
def test_only_processes_of_an_earlier_start_are_orphans(
    run: Run, sleeper: "subprocess.Popen[bytes]"
) -> None:
    identity = ProcessIdentity.of(sleeper.pid)
    assert identity is not None
    Heartbeat(run.folder, identity, 1).check()
    earlier = ProcessIdentity(1, identity.started_at - 1, identity.boot)
    later = ProcessIdentity(1, identity.started_at + 1, identity.boot)

    spared = end_orphans(run.folder, earlier)
    lives = identity.is_alive
    ended = end_orphans(run.folder, later)

    assert (spared, lives, ended) == (0, True, 1)
    assert sleeper.wait(timeout=120) == -signal.SIGKILL


@pytest.mark.fault("A6")
def test_a_run_whose_process_does_not_move_is_stalled(
    run: Run, sleeper: "subprocess.Popen[bytes]"
) -> None:
    lock = run.take()
    run.events.append(RunStarted(1, 10, 5))
    run.events.append(StepDone(1, {}))
    identity = ProcessIdentity.of(sleeper.pid)
    assert identity is not None
    Heartbeat(run.folder, identity).check()
    before = run.status().state
    long_ago = time.time() - 7000
    os.utime(run.folder / "control" / "heartbeat-0", (long_ago, long_ago))
    stalled = run.status()
    lock.release()

    assert (before, stalled.state, stalled.is_active) == ("running", "stalled", True)
    assert "no sign of life for 70" in stalled.reason


@pytest.mark.fault("A6")
def test_signs_of_life_come_while_the_main_thread_moves_or_events_come(run: Run) -> None:
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None
    heartbeat = Heartbeat(run.folder, identity)
    gate, done = threading.Event(), threading.Event()
    waiting = threading.Thread(target=lambda: (gate.wait(), done.wait()))
    waiting.start()
    heartbeat.of_thread(waiting.ident)
    path = run.folder / "control" / "heartbeat-0"

    def signs() -> bool:
        os.utime(path, (1, 1))
        heartbeat.check()
        return path.stat().st_mtime > 1

    heartbeat.check()
    at_rest = signs()
    heartbeat.receive(StepDone(1, {"perf/s_per_step": 5.0}))
    by_event = signs()
    at_rest_again = signs()
    gate.set()
    deadline = time.monotonic() + 120
    moved = False
    while not moved and time.monotonic() < deadline:
        moved = signs()
    done.set()
    waiting.join()

    assert (at_rest, by_event, at_rest_again, moved) == (False, True, False, True)


def test_a_step_may_take_twenty_times_as_long_as_usual_and_a_minute_at_least(run: Run) -> None:
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None
    heartbeat = Heartbeat(run.folder, identity)
    heartbeat.of_thread(threading.get_ident())

    def train_step(seconds: float) -> float:
        for step in range(60):
            heartbeat.receive(StepDone(step, {"perf/s_per_step": seconds}))
        heartbeat.check()
        return read_pulses(run.folder)[0].limit_s

    heartbeat.check()

    assert read_pulses(run.folder)[0].limit_s == 600.0
    assert [train_step(0.1), train_step(9.0)] == [60.0, 180.0]


@pytest.mark.fault("A17")
def test_a_log_is_cut_to_its_end_while_others_append_to_it(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with log.open("a") as writer:
        writer.write("old\n" * 1000 + "the last words\n")
        writer.flush()
        short = cap_log(log, 1_000_000)
        cut = cap_log(log, 1000)
        writer.write("and on\n")

    assert (short, cut) == (False, True)
    assert log.read_text() == "and on\n"
    assert (tmp_path / "log.1.txt").read_text().endswith("old\nthe last words\n")
    assert (tmp_path / "log.1.txt").stat().st_size == 1000


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--run", "x"], True),
        (["resume", "x"], True),
        (["resume", "--help"], False),
        (["status", "x"], False),
        ([], False),
    ],
)
def test_only_what_trains_is_supervised(
    words: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)

    alone = needs_supervisor(words)
    monkeypatch.setenv("WORLD_SIZE", "2")

    assert (alone, needs_supervisor(words)) == (expected, False)


_SET_UP = """
import ctypes, sys
from trainer.worker.training_process import set_up_process, install_signal_handlers
from trainer.runs.run import Run
from trainer.core.train_state import World
run = Run.open(sys.argv[1])
set_up_process(run, World())
print("ready", flush=True)
for line in sys.stdin:
    if line == "crash\\n":
        ctypes.string_at(0)
    install_signal_handlers(run)
    print("ready", flush=True)
"""


@pytest.mark.fault("A6", "A8", "A12")
def test_a_training_process_answers_signals_and_leaves_a_trace_of_a_crash(run: Run) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _SET_UP, str(run.folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    heard = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert process.stdout.readline() == "ready\n"
        run.answer("stop")
        process.send_signal(number)
        deadline = time.monotonic() + 120
        while not run.requests() and time.monotonic() < deadline:
            time.sleep(0.01)
        heard.append(run.requests())
        process.stdin.write("on\n")
        process.stdin.flush()

    process.send_signal(signal.SIGUSR1)
    process.communicate("crash\n", timeout=120)

    log = (run.folder / "log.txt").read_text()
    assert heard == [{"stop"}] * 3
    assert "(most recent call first)" in log
    assert "Fatal Python error: Segmentation fault" in log
    assert process.returncode == -signal.SIGSEGV
    assert "(SIGSEGV); its last stack is in log.txt" in explain_exit(-11, "")[0]


def test_a_trained_process_ends_with_its_supervisor(run: Run) -> None:
    (run.folder / "deaf").touch()
    source = (
        "import sys\nfrom trainer.worker.supervisor import *\n"
        f"child = {_CHILD!r}.replace('if end == \"dump\"', 'from trainer.worker.supervisor import "
        'die_with_parent; die_with_parent()\\nif end == "dump"\')\n'
        "Supervisor([sys.executable, '-c', child, sys.argv[1], 'wait', '1'], "
        "RestartPolicy()).run()\n"
    )
    supervisor = subprocess.Popen([sys.executable, "-c", source, str(run.folder)])
    deadline = time.monotonic() + 120
    while run.series().last_step != 7 and time.monotonic() < deadline:
        time.sleep(0.01)
    (child,) = psutil.Process(supervisor.pid).children()

    supervisor.kill()
    supervisor.wait()

    gone, alive = psutil.wait_procs([child], timeout=120)
    assert (gone, alive) == ([child], [])


def test_a_last_word_counts_more_than_what_strikes_after_it(run: Run) -> None:
    code = _supervise(run, "0")
    run.events.append(RunFinished("finished", 9))
    last = Supervisor([], _AT_ONCE)
    last._folder = run.folder

    assert code == 0
    assert last._ending_of(-9)[0].code == 0

"""The queue: runs one after the other, in order, whatever happens to the process that keeps it."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainer import Run, RunConfig
from trainer.core.errors import RunError, RunOwned
from trainer.core.events import RunStarted, StepDone
from trainer.runs.locks import is_locked
from trainer.runs.queue import RunQueue
from trainer.runs.run_store import RunStore

_TRAINER = """
import fcntl, json, os, time
lock = open("owner.lock", "a")
fcntl.flock(lock, fcntl.LOCK_EX)
def note(word):
    with open("../order.txt", "a") as file:
        file.write(word + " " + os.path.basename(os.getcwd()) + "\\n")
note("begins")
while os.path.exists("../wait"):
    time.sleep(0.01)
end = {"time": time.time(), "type": "RunFinished", "outcome": "finished", "step": 1}
with open("events.jsonl", "a") as file:
    file.write(json.dumps(end) + "\\n")
note("ends")
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunStore]:
    """A library whose runs notes when they begin and end, and do nothing else."""
    monkeypatch.setattr(Run, "command", lambda run: [sys.executable, "-S", "-c", _TRAINER])
    library = RunStore(tmp_path / "runs")
    yield library
    (library.folder / "wait").unlink(missing_ok=True)
    for thread in threading.enumerate():
        if thread.name.startswith("trainer-"):
            thread.join(timeout=300)


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _words(library: RunStore) -> list[str]:
    path = library.folder / "order.txt"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _names(queue: RunQueue) -> list[str]:
    return [entry.name for entry in queue.waiting()]


def test_five_runs_queued_at_once_train_one_after_the_other(library: RunStore) -> None:
    threads = [
        threading.Thread(target=library.enqueue, args=("voice", RunConfig())) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queued = _names(library.queue)

    keeper = library.keep_queue(poll_s=0.01)
    _wait(lambda: len(_words(library)) == 10)
    keeper.end()

    assert sorted(queued) == ["voice", "voice-2", "voice-3", "voice-4", "voice-5"]
    assert _words(library) == [f"{word} {name}" for name in queued for word in ("begins", "ends")]
    assert library.queue.waiting() == []


def test_the_queue_outlives_the_process_that_kept_it(library: RunStore) -> None:
    first = library.enqueue("first", RunConfig())
    second = library.enqueue("second", RunConfig())
    (library.folder / "wait").touch()
    keeper = library.keep_queue(poll_s=0.01)
    _wait(lambda: _words(library) == ["begins first"])
    keeper.end()

    heir = RunStore(library.folder)
    heir.attach()
    waiting = _names(heir.queue)
    keeper = heir.keep_queue(poll_s=0.01)
    (library.folder / "wait").unlink()
    _wait(lambda: len(_words(library)) == 4)
    keeper.end()

    assert waiting == ["second"]
    assert [first.status().state, second.wait(poll_s=0.01).state] == ["finished", "finished"]


def test_a_run_that_began_before_its_server_was_killed_is_not_begun_again(
    library: RunStore,
) -> None:
    run = library.enqueue("voice", RunConfig())
    run.start().wait()

    library.start_next()

    assert _words(library) == ["begins voice", "ends voice"]
    assert library.queue.waiting() == []


def test_only_one_of_two_servers_keeps_a_queue(library: RunStore) -> None:
    begun: list[str] = []
    keepers = [library.keep_queue(poll_s=0.01)]
    _wait(lambda: is_locked(library.folder / ".queue.keeper"))
    other = RunStore(library.folder)
    other.start_next = lambda: begun.append("other")  # type: ignore[method-assign]
    keepers.append(other.keep_queue(poll_s=0.01))
    library.enqueue("voice", RunConfig())
    _wait(lambda: len(_words(library)) == 2)
    stood_by = not begun

    keepers[0].end()
    _wait(lambda: bool(begun))
    keepers[1].end()

    assert stood_by


def test_a_paused_queue_starts_nothing_until_it_goes_on(library: RunStore) -> None:
    library.enqueue("voice", RunConfig())
    library.queue.pause(True)

    library.start_next()
    while_paused = _words(library)
    RunStore(library.folder).queue.pause(False)
    library.start_next()
    _wait(lambda: len(_words(library)) == 2)

    assert while_paused == []


def test_nothing_starts_while_a_run_trains_that_did_not_wait(library: RunStore) -> None:
    lock = library.create("by-hand", RunConfig()).take()
    library.enqueue("voice", RunConfig())

    library.start_next()
    lock.release()

    assert _names(library.queue) == ["voice"]


def test_a_run_that_cannot_start_says_so_and_lets_the_next_one_through(
    library: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    works = Run.command
    broken = library.enqueue("broken", RunConfig())
    library.enqueue("voice", RunConfig())
    monkeypatch.setattr(
        Run, "command", lambda run: ["/no/such"] if run.name == "broken" else works(run)
    )

    library.start_next()
    library.start_next()
    _wait(lambda: len(_words(library)) == 2)

    status = broken.status()
    assert status.state == "failed"
    assert "could not be started from the queue" in status.reason


def test_the_queue_is_reordered_and_left(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path)
    for name in ("a", "b", "c", "b"):
        queue.add(name)

    queue.move("c", -2)
    queue.move("b", 5)
    queue.remove("a")

    assert _names(queue) == ["c", "b"]
    with pytest.raises(RunError, match="no longer in the queue"):
        queue.move("a", 1)


def test_a_run_that_is_gone_is_passed_over(library: RunStore) -> None:
    library.queue.add("nobody")

    library.start_next()

    assert library.queue.waiting() == []


def test_a_run_that_trains_cannot_wait(library: RunStore) -> None:
    run = library.create("voice", RunConfig())
    lock = run.take()

    with pytest.raises(RunOwned, match="cannot be queued"):
        library.requeue("voice")
    lock.release()
    library.requeue("voice")

    assert _names(library.queue) == ["voice"]


def test_more_steps_count_from_the_planned_end_or_from_an_early_one(library: RunStore) -> None:
    run = library.create("voice", RunConfig())
    run.events.append(RunStarted(1, 100, 10))
    run.events.append(StepDone(40, {"train/loss": 1.0}))
    lock = run.take()

    while_training = [library.add_steps("voice", 10), library.add_steps("voice", 10)]
    lock.release()
    run.request_steps(41)

    assert while_training == [110, 120]
    assert run.requested_steps() == 41
    with pytest.raises(RunError, match="at step 40"):
        run.request_steps(40)
    with pytest.raises(RunError, match="enter at least 1"):
        library.add_steps("voice", 0)


def test_steps_that_were_asked_for_too_late_start_the_run_again(library: RunStore) -> None:
    run = library.create("voice", RunConfig())
    (library.folder / "wait").touch()
    library.resume("voice")
    _wait(lambda: _words(library) == ["begins voice"])

    library.add_steps("voice", 10)
    (library.folder / "wait").unlink()
    _wait(lambda: len(_words(library)) == 4)
    (run.folder / "control" / "plan").unlink()

    assert _words(library) == ["begins voice", "ends voice"] * 2

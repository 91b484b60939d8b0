"""The trash: runs go there and come back whole; one that trains is never moved."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from trainer import Run, RunConfig
from trainer.core.errors import RunNotFound, RunOwned
from trainer.core.events import RunFinished, StepDone
from trainer.runs.run_store import RunStore

_OBEDIENT = """
import sys
from trainer import Run
run = Run.open(sys.argv[1])
lock = run.take()
print("owned", flush=True)
sys.stdin.readline()
assert "stop" in run.requests()
run.answer("stop")
"""


@pytest.fixture
def library(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs")


@pytest.fixture
def run(library: RunStore) -> Run:
    run = library.create("voice", RunConfig())
    run.events.append(StepDone(7, {"train/loss": 1.0}))
    run.events.append(RunFinished("stopped", 7))
    return run


def test_a_discarded_run_is_gone_and_comes_back_whole(library: RunStore, run: Run) -> None:
    library.queue.add("voice")

    assert library.discard("voice")
    names, waiting, lying = library.names(), library.queue.waiting(), library.trash.contents()
    back = library.restore(lying[0].key)

    assert (names, waiting) == ([], [])
    assert [(entry.name, entry.size_bytes > 0) for entry in lying] == [("voice", True)]
    assert back.status().step == 7
    assert library.trash.contents() == []


def test_a_name_that_was_taken_meanwhile_gets_a_number(library: RunStore, run: Run) -> None:
    library.discard("voice")
    library.create("voice", RunConfig())

    back = library.restore(library.trash.contents()[0].key)

    assert back.name == "voice-2"


def test_a_new_run_of_that_name_has_numbers_of_its_own(library: RunStore, run: Run) -> None:
    before = library.status("voice").step
    library.discard("voice")

    library.create("voice", RunConfig())

    assert (before, library.status("voice").step) == (7, 0)


def test_a_run_that_trains_is_not_moved(library: RunStore, run: Run) -> None:
    lock = run.take()

    with pytest.raises(RunOwned, match="Stop it"):
        library.trash.move_in(run)
    lock.release()

    assert library.names() == ["voice"]


def test_discarding_a_run_that_trains_stops_it_first(library: RunStore, run: Run) -> None:
    command = [sys.executable, "-c", _OBEDIENT, str(run.folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "owned\n"

        done_at_once = library.discard("voice")
        state = run.status().state
        process.communicate("end\n", timeout=300)
    for thread in threading.enumerate():
        if thread.name == "trainer-voice":
            thread.join(timeout=300)

    assert (done_at_once, state) == (False, "stopping")
    assert library.names() == []
    assert library.restore(library.trash.contents()[0].key).requests() == set()


def test_a_restarted_server_finishes_what_was_to_be_discarded(library: RunStore, run: Run) -> None:
    run.request("discard")

    RunStore(library.folder).attach()

    assert library.names() == []
    assert [entry.name for entry in library.trash.contents()] == ["voice"]


def test_what_is_deleted_is_gone_for_good(library: RunStore, run: Run) -> None:
    library.discard("voice")

    library.trash.delete(library.trash.contents()[0].key)

    assert not list((library.folder / ".trash").iterdir())


@pytest.mark.parametrize("key", ["..", "../voice", "", "voice", "1700000000000-voice"])
def test_only_what_lies_in_the_trash_can_be_named(library: RunStore, run: Run, key: str) -> None:
    with pytest.raises(RunNotFound):
        library.trash.delete(key)
    with pytest.raises(RunNotFound):
        library.restore(key)

    assert library.names() == ["voice"]

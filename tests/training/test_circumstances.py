"""Circumstances: clocks that jump, ports that are taken, folders that go away, a late Stop."""

import json
import random
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.toy import ToyBatches, make_setup
from trainer import Run, RunConfig
from trainer.checkpoints.checkpoint import newest_checkpoint, prune, save_checkpoint
from trainer.core.errors import StopRequested
from trainer.core.events import Event, Notice, Publisher, RunStarted, StepDone, ValidationDone
from trainer.core.train_state import Cadence
from trainer.core.types import Batch
from trainer.data.features.dataset import _reporter
from trainer.training.loop import train
from trainer.worker.event_writer import EventWriter
from webui import launch as app

_ROOT = Path(__file__).parent.parent.parent


@pytest.mark.fault("A13")
def test_a_clock_that_jumps_changes_neither_pace_nor_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    state = make_setup(run.folder, steps=20)
    state.validate_every = state.preview_every = Cadence()
    jumps = random.Random(0)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + jumps.choice([-86_400, 0, 3600]))
    tell = Publisher(EventWriter(run))

    tell(RunStarted(1, 20, 4))
    train(state, tell)
    status = run.status()
    series = run.series()

    assert list(series.steps.columns["step"]) == list(range(1, 21))
    assert all(0 < seconds < 60 for seconds in series.steps.columns["perf/s_per_step"])
    assert status.eta_s is None or status.eta_s >= 0


@pytest.mark.fault("A14")
def test_a_port_that_is_taken_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        found = app._free_port("127.0.0.1", port)

    assert port < found < port + 100


@pytest.mark.fault("A16")
def test_no_process_is_ever_forked() -> None:
    sources = [*(_ROOT / "trainer").rglob("*.py"), *(_ROOT / "webui").rglob("*.py")]
    code = "\n".join(path.read_text(encoding="utf-8") for path in sources)

    pools = re.findall(r"ProcessPoolExecutor\(([^)]*)", code)
    contexts = re.findall(r"get_context\(([^)]*)\)", code)

    assert pools and all("get_context" in words for words in pools)
    assert contexts and set(contexts) == {'"spawn"'}
    assert not re.search(r"os\.fork|multiprocessing\.(Pool|Process|Queue)\(|mp\.Process", code)


@pytest.mark.fault("B15")
def test_what_is_published_was_written_beside_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_setup(tmp_path)
    real, moves = Path.replace, []

    def replace(path: Path, target: Path) -> Path:
        moves.append((path.parent, Path(target).parent))
        return real(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    for step in range(1, 7):
        save_checkpoint(state, step, best=step == 2)

    assert len(moves) == 6
    assert all(source == target == tmp_path / "checkpoints" for source, target in moves)


@pytest.mark.fault("B9")
def test_no_pointer_says_which_checkpoint_is_the_newest(tmp_path: Path) -> None:
    state = make_setup(tmp_path)
    saved = tmp_path / save_checkpoint(state, 3, best=True).path
    parent = tmp_path / "checkpoints"
    (parent / "latest").symlink_to(parent / "step-00000009")
    (parent / "step-00000007").symlink_to(parent / "step-00000009")

    found, complaints = newest_checkpoint(parent)

    assert found == saved
    assert len(complaints) == 1 and "step-00000007" in complaints[0]


@pytest.mark.fault("B16")
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_saved_the_newest_and_the_best_stay(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    keep_last, best = dice.randint(1, 4), 0
    steps: list[int] = []

    for _ in range(25):
        steps.append((steps or [0])[-1] + dice.randint(1, 1000))
        is_best = dice.random() < 0.3
        best = steps[-1] if is_best else best
        folder = tmp_path / f"step-{steps[-1]:08d}"
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({"step": steps[-1], "best": is_best}))
        prune(tmp_path, keep_last=keep_last)

        left = {int(path.name.removeprefix("step-")) for path in tmp_path.glob("step-*")}
        assert left == {*steps[-keep_last:], *({best} - {0})}


@pytest.mark.fault("B4")
def test_a_folder_that_goes_away_for_a_while_costs_a_save_and_no_event(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "voice", RunConfig())
    state = make_setup(run.folder, steps=12)
    state.save_every, state.preview_every = Cadence(6), Cadence()
    tell, gone = Publisher(EventWriter(run)), tmp_path / "unplugged"

    def unplug(event: Event) -> None:
        if isinstance(event, StepDone) and event.step == 5:
            run.folder.rename(gone)
        if isinstance(event, StepDone) and event.step == 9:
            gone.rename(run.folder)
        tell(event)

    outcome = train(state, unplug)

    notices = [each.event for each in run.events.follow() if isinstance(each.event, Notice)]
    assert outcome == "finished"
    assert list(run.series().steps.columns["step"]) == list(range(1, 13))
    # The best one of step 4 is there if its writer was done before the folder went away.
    assert {12} <= {info.step for info in run.checkpoints()} <= {4, 12}
    assert any("checkpoint of step 6 could not be saved" in notice.text for notice in notices)


@pytest.mark.fault("A11")
def test_stop_is_heard_in_the_middle_of_a_validation(tmp_path: Path) -> None:
    state = make_setup(tmp_path)
    seen: list[int] = []

    class Stopped(ToyBatches):
        def micro_batches(self, step: int) -> list[Batch]:
            return _stop_after_first(super().micro_batches(step))  # type: ignore[return-value]

    def _stop_after_first(batches: list[Batch]) -> Iterator[Batch]:
        for batch in batches:
            seen.append(len(seen))
            yield batch
            (tmp_path / "control" / "stop").touch()

    state.val_batches = Stopped(2)
    told: list[Event] = []

    outcome = train(state, told.append)

    assert (outcome, seen) == ("stopped", [0, 1])
    assert not any(isinstance(event, ValidationDone) for event in told)
    assert newest_checkpoint(tmp_path / "checkpoints")[0] == (
        tmp_path / "checkpoints" / "step-00000005"
    )


@pytest.mark.fault("A11")
def test_stop_is_heard_while_clips_are_prepared(tmp_path: Path) -> None:
    (tmp_path / "control").mkdir()
    told: list[Event] = []
    report = _reporter(tmp_path, told.append)

    report("Computing features", 1, 100)
    (tmp_path / "control" / "stop").touch()

    with pytest.raises(StopRequested, match="being prepared"):
        report("Computing features", 2, 100)
    assert len(told) == 1

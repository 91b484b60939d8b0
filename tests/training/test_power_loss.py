"""Power that fails at any instant: a checkpoint is whole or absent, and no fsync is for nothing."""

import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.helpers.disk import Disk, Operation, record
from tests.helpers.toy import make_setup
from trainer.checkpoints.checkpoint import newest_checkpoint, save_checkpoint
from trainer.core.atomic_io import write_atomic
from trainer.training.loop import train_step

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="reads /proc to name what is forced"
)

_FORCED = ["config.json", "manifest.json", "model.safetensors", "state.pt", "partial", "parent"]


@pytest.fixture(scope="module")
def saving(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Operation]]:
    """A checkpoints folder with step 1 on the disk, and the operations that save step 2."""
    folder = tmp_path_factory.mktemp("saving")
    state = make_setup(folder / "run", keep_last=1)
    train_step(state, 1)
    save_checkpoint(state, 1, best=False)
    before = folder / "before"
    shutil.copytree(folder / "run" / "checkpoints", before)
    log = record(folder / "run" / "checkpoints", lambda: save_checkpoint(state, 2, best=False))
    return before, log


def _kind(operation: Operation) -> str:
    """Say what an fsync forces: a file's name, what is renamed later, or the folder above it."""
    name = Path(operation[1]).name
    return "parent" if not name else "partial" if name.endswith(".part") else name


def _failures(
    before: Path, log: list[Operation], work: Path, is_good: Callable[[Path, bool], bool]
) -> Iterable[dict[str, bytes]]:
    """Yield the states of the disk from which there is no way on, wherever power fails."""
    disk, judged = Disk(before), set[frozenset[tuple[str, bytes]]]()
    published = max(at for at, (kind, *_) in enumerate(log) if kind == "fsync")
    for at, operation in enumerate(log):
        disk.do(operation)
        for state in disk.after_power_loss():
            is_told = at > published
            key = frozenset(state.items() | {("told", bytes([is_told]))})
            if key in judged:
                continue
            judged.add(key)
            shutil.rmtree(work, ignore_errors=True)
            for name, content in state.items():
                (work / name).parent.mkdir(parents=True, exist_ok=True)
                (work / name).write_bytes(content)
            work.mkdir(parents=True, exist_ok=True)
            if not is_good(work, is_told):
                yield state
    assert len(judged) > 3


def _is_usable(work: Path, is_told: bool) -> bool:
    newest, _ = newest_checkpoint(work)
    names = {"step-00000002"} if is_told else {"step-00000001", "step-00000002"}
    return newest is not None and newest.name in names


@pytest.mark.fault("A3")
def test_wherever_power_fails_a_checkpoint_is_whole_and_one_that_was_told_stays(
    tmp_path: Path, saving: tuple[Path, list[Operation]]
) -> None:
    before, log = saving

    assert [_kind(each) for each in log if each[0] == "fsync"] == _FORCED
    assert list(_failures(before, log, tmp_path / "work", _is_usable)) == []


@pytest.mark.fault("A3")
@pytest.mark.parametrize("left_out", _FORCED)
def test_no_fsync_of_a_save_may_be_left_out(
    tmp_path: Path, saving: tuple[Path, list[Operation]], left_out: str
) -> None:
    before, log = saving
    weaker = [each for each in log if each[0] != "fsync" or _kind(each) != left_out]

    # `told` is where the full protocol is through, so the last operations are those after it.
    assert any(True for _ in _failures(before, weaker, tmp_path / "work", _is_usable))


@pytest.mark.fault("A3")
@pytest.mark.parametrize("left_out", [None, "partial", "parent"])
def test_a_file_written_durably_is_the_old_one_or_the_new_one(
    tmp_path: Path, left_out: str | None
) -> None:
    folder, before = tmp_path / "now", tmp_path / "before"
    folder.mkdir()
    (folder / "file.json").write_text("the old one")
    shutil.copytree(folder, before)
    log = record(folder, lambda: write_atomic(folder / "file.json", "the new one"))
    log.append(("write", "told", b""))
    weaker = [each for each in log if each[0] != "fsync" or _kind(each) != left_out]

    def is_good(work: Path, is_told: bool) -> bool:
        found = (work / "file.json").read_text()
        return found == "the new one" or (found == "the old one" and "told" not in _names(work))

    failures = list(_failures(before, weaker, tmp_path / "work", is_good))

    assert bool(failures) == (left_out is not None)


def _names(work: Path) -> set[str]:
    return {path.name for path in work.iterdir()}

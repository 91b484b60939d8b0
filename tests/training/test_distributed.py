"""Several processes: two ranks train to the weights of one, survive a lost one, become one."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers.toy import ToyBatches, make_setup
from trainer import Run, RunConfig
from trainer.checkpoints.checkpoint import newest_checkpoint, restore_checkpoint
from trainer.core.errors import RunError
from trainer.core.events import Event
from trainer.core.run_config import TrainingConfig
from trainer.core.train_state import Cadence, TrainState, World
from trainer.runs.restart_policy import RestartPolicy
from trainer.training.distributed import agree, join_world, sum_values
from trainer.training.loop import train
from trainer.worker.supervisor import Supervisor

_RANK = """
import os, signal, sys
from pathlib import Path
from tests.training.test_distributed import RankBatches, make_plain_setup
from trainer.checkpoints.checkpoint import newest_checkpoint, restore_checkpoint
from trainer.training.distributed import agree, join_world, leave_world
from trainer.training.loop import train
from trainer.worker.supervisor import end_process

class LosingBatches(RankBatches):
    def micro_batches(self, step):
        if step == 5 and self.world.rank == 1 and not (folder / "was-killed").exists():
            (folder / "was-killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().micro_batches(step)

folder = Path(sys.argv[1])
world = join_world("cpu")
setup = make_plain_setup(folder if world.is_main else folder / "other", world)
setup.train_batches = LosingBatches(world)
setup.last_step = 6
assert agree(world, ["save"] if world.is_main else ["stop"], ("save", "stop")) == {"save"}
checkpoint, _ = newest_checkpoint(folder / "checkpoints")
if checkpoint is not None:
    setup.first_step = restore_checkpoint(setup, checkpoint) + 1
with (folder / f"starts-{world.rank}").open("a") as file:
    file.write(f"{setup.first_step} ")
train(setup, lambda event: None)
leave_world(world)
end_process(0)
"""
_LAUNCH = """
import os, sys
from pathlib import Path
from trainer.worker.supervisor import report
report(Path(sys.argv[1]), 2)
torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
os.execv(sys.executable, [sys.executable, *torchrun, sys.argv[2], sys.argv[1]])
"""


class RankBatches(ToyBatches):
    """The toy's two micro-batches of a step, dealt to the ranks."""

    def __init__(self, world: World) -> None:
        super().__init__(num_micro_steps=2)
        self.world = world

    def micro_batches(self, step: int) -> list:
        return super().micro_batches(step)[self.world.rank :: self.world.size]


def make_plain_setup(folder: Path, world: World) -> TrainState:
    """Return a toy without dropout and running statistics, which differ between ranks."""
    state = make_setup(folder, num_micro_steps=2, steps=9)
    state.world = world
    state.train_batches = state.val_batches = RankBatches(world)
    state.save_every, state.preview_every = Cadence(2), Cadence()
    state.model.norm = torch.nn.Identity()
    state.model.eval()
    return state


def test_one_process_is_a_world_of_its_own() -> None:
    world = join_world("cpu")
    value = torch.tensor(3.0)

    assert world == World(0, 1, 0)
    assert world.is_main
    assert agree(world, ["save"], ("save", "stop")) == {"save"}
    assert sum_values({"loss": value}, world) == {"loss": value}


def test_what_is_left_of_a_rank_cannot_spoil_its_exit_code() -> None:
    program = "import atexit, os, trainer.worker.supervisor as s; atexit.register(os.abort)"
    program += "; print('told'); s.end_process(3)"

    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"WORLD_SIZE": "2"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (3, "told\n")


def _silent(event: Event) -> None:
    """Tell nobody."""


def _largest_difference(folder: Path, other: Path, step: int) -> float:
    name = f"checkpoints/step-{step:08d}/model.safetensors"
    ours, theirs = load_file(folder / name), load_file(other / name)
    assert ours.keys() == theirs.keys()
    return max(float((ours[key] - theirs[key]).abs().max()) for key in ours)


@pytest.mark.fault("A1", "E15")
def test_two_ranks_train_as_one_after_one_was_killed_and_one_alone_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent.parent))
    kept = [signal.getsignal(number) for number in (2, 15, 1)]
    run = Run.create(tmp_path / "two", RunConfig())
    (tmp_path / "rank.py").write_text(_RANK)
    words = [sys.executable, "-c", _LAUNCH, str(run.folder), str(tmp_path / "rank.py")]
    alone = make_plain_setup(tmp_path / "one", World())

    code = Supervisor(words, RestartPolicy(waits_s=(0.0,)), lambda folder: words).run()
    for number, handler in zip((2, 15, 1), kept, strict=True):
        signal.signal(number, handler)
    train(alone, _silent)
    relaunched = make_plain_setup(run.folder, World())
    checkpoint, _ = newest_checkpoint(run.folder / "checkpoints")
    assert checkpoint is not None
    relaunched.first_step = restore_checkpoint(relaunched, checkpoint) + 1
    at_six = _largest_difference(run.folder, tmp_path / "one", 6)
    train(relaunched, _silent)

    assert code == 0
    first, second = (run.folder / "starts-1").read_text().split()
    assert (first, second) in {("1", "1"), ("1", "3"), ("1", "5")}
    assert at_six < 1e-6
    assert relaunched.first_step == 7
    assert _largest_difference(run.folder, tmp_path / "one", 8) < 1e-6


def test_as_many_processes_are_chosen_as_can_share_a_step(tmp_path: Path) -> None:
    config = RunConfig(training=TrainingConfig(num_processes=2, accumulate=3))
    run = Run.create(tmp_path / "voice", config)

    run.choose_processes(3)
    with pytest.raises(RunError, match="Use one of: 1, 2, 3, 6"):
        run.choose_processes(4)

    assert run.num_processes == 3
    assert "3" in run.torchrun()
    assert os.fspath(run.folder) == run.torchrun()[-1]

"""Several processes: two ranks over gloo train to the weights of one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import torch

from trainer.distributed import agree, join_world, sum_values
from trainer.setup import World

_RANK = """
import sys
from pathlib import Path
import torch
from tests._toy import ToyBatches, make_setup
from trainer.distributed import agree, join_world, leave_world
from trainer.loop import train

class RankBatches(ToyBatches):
    def of_step(self, step):
        whole = super().of_step(step)
        return whole[world.rank :: world.size]

world = join_world("cpu")
folder = Path(sys.argv[1])
setup = make_setup(folder if world.is_main else folder / "other", num_micro_steps=2, steps=6)
setup.world = world
setup.train_batches = setup.val_batches = RankBatches(2)
setup.model.norm = torch.nn.Identity()
setup.model.eval()
if not world.is_main:
    assert agree(world, ["stop"], ("save", "stop")) == {"save"}
else:
    assert agree(world, ["save"], ("save", "stop")) == {"save"}
train(setup, lambda event: None)
torch.save(setup.model.state_dict(), folder / f"rank-{world.rank}.pt")
leave_world(world)
"""


def test_one_process_is_a_world_of_its_own() -> None:
    world = join_world("cpu")
    value = torch.tensor(3.0)

    assert world == World(0, 1, 0)
    assert world.is_main
    assert agree(world, ["save"], ("save", "stop")) == {"save"}
    assert sum_values({"loss": value}, world) == {"loss": value}


def test_two_ranks_train_to_the_weights_of_one_process(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    worlds = {0: ("0", "2"), 1: ("1", "2")}
    command = [sys.executable, "-c", _RANK, str(tmp_path / "two")]

    processes = [
        subprocess.Popen(
            command, env=common | {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size}
        )
        for rank, size in worlds.values()
    ]
    codes = [process.wait(timeout=120) for process in processes]
    alone = [sys.executable, "-c", _RANK.replace('== {"save"}', "or True"), str(tmp_path / "one")]
    codes.append(subprocess.run(alone, env=common, check=False, timeout=120).returncode)

    assert codes == [0, 0, 0]
    one = torch.load(tmp_path / "one" / "rank-0.pt")
    for rank in worlds:
        weights = torch.load(tmp_path / "two" / f"rank-{rank}.pt")
        for name, value in one.items():
            assert torch.allclose(weights[name], value, atol=1e-6), (rank, name)

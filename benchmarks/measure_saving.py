"""How long training stands still for a checkpoint: saved beside it, and saved at once.

python -m benchmarks.measure_saving [--mib 200] [--rounds 7] [--folder DIR] trains a stack of linear
layers whose checkpoint has about that size. Every round does the same steps without a save and
with one beside them, then saves at once. It prints medians of the rounds.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer.checkpoints.async_writer import CheckpointWriter
from trainer.checkpoints.checkpoint import take_snapshot, write_snapshot
from trainer.checkpoints.staging import Staging
from trainer.config.schedules import SCHEDULES, ConstantOptions
from trainer.core.device import MIB, Device
from trainer.core.events import CheckpointSaved, Event
from trainer.core.options import build_options
from trainer.core.registry import find
from trainer.core.run_config import RunConfig, TrainingConfig
from trainer.core.specs import Corpus, ModelFamily, OptimizerSpec, Speech
from trainer.core.train_state import TrainState
from trainer.core.types import Batch
from trainer.optimizers._core.param_groups import param_groups
from trainer.training.loop import train_step

_WIDTH = 512


class Batches:
    """One batch of noise, the same at every step."""

    steps_per_epoch = 1
    num_clips = 1
    waited_s = 0.0

    def __init__(self, rows: int) -> None:
        self._batch = Batch({"x": torch.randn(rows, _WIDTH)}, ["noise"], {"clips": 1.0}, 1.0)

    def audio_s_of_step(self, step: int) -> float:
        """Return the seconds of audio in a step."""
        return 1.0

    def micro_batches(self, step: int) -> list[Batch]:
        """Return the batch."""
        return [self._batch]

    def close(self) -> None:
        """End nothing."""


def export(
    model: nn.Module,
    facts: dict[str, Any],
    folder: Path,
    weights: dict[str, Tensor] | None = None,
) -> None:
    """Write the weights and the facts."""
    save_file(weights or model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(facts), encoding="utf-8")


def losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return a loss."""
    return {"error": (model(batch["x"]) - 1).square().mean()}


def make_setup(folder: Path, mib: float, rows: int) -> TrainState:
    """Return a run whose weights and AdamW state take about so many MiB."""
    layers = max(1, round(mib * MIB / (3 * 4 * _WIDTH * _WIDTH)))
    model = nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH) for _ in range(layers)])
    spec = find("trainer.optimizers", OptimizerSpec, "adamw")
    device = torch.device("cpu")
    options = build_options(spec.options, {"lr": 1e-4}, "adamw")

    def unused(*arguments: Any) -> Any:
        raise NotImplementedError

    def speak(*arguments: Any) -> Speech:
        raise NotImplementedError

    family = ModelFamily(
        "noise", "Noise", "", object, "", load=unused, featurizer=unused, survey=unused,
        counts=unused, collate=unused, losses=losses,
        validate=lambda model, batch: (losses(model, batch), {}),
        blocks=lambda model: [], synthesize=speak, export=export,
    )  # fmt: skip
    (folder / "checkpoints").mkdir(parents=True)
    return TrainState(
        config=RunConfig(training=TrainingConfig(keep_last=1)),
        folder=folder,
        machine=Device("cpu", 0, "CPU", 1.0),
        device=device,
        family=family,
        model=model,
        corpus=Corpus({"family": "noise"}, {}),
        optimizer=spec.build(param_groups(model, 0.01), options, device),
        optimizer_spec=spec,
        base_lr=1e-4,
        optimizer_options=options,
        schedule=SCHEDULES["constant"],
        schedule_options=ConstantOptions(),
        planned_steps=1,
        train_batches=Batches(rows),
        val_batches=None,
        first_step=1,
        last_step=1,
    )


def measure(state: TrainState, rounds: int, steps: int) -> list[dict[str, float]]:
    """Return, for every round, the seconds of the same steps in each way, and what they waited."""
    found: list[dict[str, float]] = []
    events: list[Event] = []
    staging = Staging(state.device)
    step = 0

    def run(save: Callable[[int], object]) -> float:
        nonlocal step
        began = time.monotonic()
        for at in range(steps):
            step += 1
            train_step(state, step)
            if at == 0:
                save(step)
        return time.monotonic() - began

    with CheckpointWriter(state, events.append) as writer:
        for _ in range(rounds + 1):
            row = {"none": run(lambda at: None)}
            row["beside"] = run(lambda at: writer.save(at, best=False))
            writer.save(step, best=False, wait=True)
            saves = [event for event in events if isinstance(event, CheckpointSaved)]
            row["waited"], row["writing"] = saves[-2].waited_s, saves[-2].seconds
            began = time.monotonic()
            write_snapshot(state, take_snapshot(state, step, best=False, staging=staging))
            row["at once"] = time.monotonic() - began
            found.append(row)
    # The first round allocates the memory that the later ones use again.
    return found[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None, help="also write the figures as JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=chosen.folder) as folder:
        state = make_setup(Path(folder) / "run", chosen.mib, chosen.rows)
        rows = measure(state, chosen.rounds, chosen.steps)
    middle = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    lost = statistics.median(row["beside"] - row["none"] for row in rows)
    stalls = [row["waited"] / row["at once"] for row in rows]
    print(f"{chosen.mib:.0f} MiB, {chosen.rounds} rounds, {torch.get_num_threads()} thread(s)")
    print(f"saved at once: {middle['at once']:.3f} s")
    print(
        f"saved beside:  {middle['waited']:.3f} s standing still, {middle['writing']:.3f} s writing"
    )
    print(
        f"stall: {statistics.median(stalls):.1%} of saving at once "
        f"({min(stalls):.1%} to {max(stalls):.1%})"
    )
    print(
        f"{chosen.steps} steps: {middle['none']:.3f} s, {lost:.3f} s more with a save beside them"
    )
    if chosen.out is not None:
        figures = {
            "command": f"OMP_NUM_THREADS={torch.get_num_threads()} python -m "
            "benchmarks.measure_saving "
            f"--mib {chosen.mib:g} --rounds {chosen.rounds} --steps {chosen.steps}",
            "stall_share": statistics.median(stalls),
            "stall_shares": stalls,
            "median_s": middle,
            "cores": os.cpu_count(),
            "torch": str(torch.__version__),
        }
        chosen.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

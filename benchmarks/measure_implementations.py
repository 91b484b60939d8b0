"""Compare our Prodigy and Schedule-Free AdamW with the packages' own classes: speed and results.

    OMP_NUM_THREADS=1 python -m benchmarks.measure_implementations
    # writes benchmarks/results/implementations.json

Both implementations train the small FastSpeech 2 (whole steps on synthetic clips), and step a stack
of its tensors and one in the shapes of XTTS v2's language model. They take turns in one process, so
that what else the machine does falls on both. Afterwards the weights are compared: the distance
between both, relative to the distance that the package's weights moved. Training amplifies
rounding, so the same is shown for the package beside itself, with start weights that differ by 1e-7
of their size.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from assets.make_base import describe_machine
from assets.make_demo import ASSETS
from benchmarks.measure_gpu import make_setup
from benchmarks.measure_optimizers import build, make_weights
from trainer.core.run_config import Choice, RunConfig, TrainingConfig
from trainer.training.loop import train_step

OURS, THEIRS = "timbre", "package"
PACKAGES = {"prodigy": "prodigyopt", "schedule_free_adamw": "schedulefree"}
# From its usual 1e-6 the estimate would take longer to grow than a measurement lasts.
VALUES: dict[str, dict[str, Any]] = {"prodigy": {"d0": 1e-4}, "schedule_free_adamw": {}}


@dataclass(frozen=True)
class Trainee:
    """Weights that an optimizer trains, and what runs one step."""

    optimizer: torch.optim.Optimizer
    step: Callable[[int], object]

    def weights(self) -> list[Tensor]:
        """Return the weights, of any shape."""
        groups = self.optimizer.param_groups
        return [weight.detach() for group in groups for weight in group["params"]]


def main() -> None:
    """Read the command line, measure and write the result."""
    parser = argparse.ArgumentParser(description="Compare the implementations of two optimizers.")
    parser.add_argument("--steps", type=int, default=36)
    parser.add_argument(
        "--out",
        type=Path,
        default=ASSETS.parent / "benchmarks" / "results" / "implementations.json",
    )
    options = parser.parse_args()
    cases = {
        "FastSpeech 2 small, whole steps": make_model,
        "FastSpeech 2 small, optimizer alone": lambda name, kind: make_stack(name, kind, small()),
        "XTTS stack, optimizer alone": lambda name, kind: make_stack(name, kind, make_weights()),
    }
    result = {
        "command": "OMP_NUM_THREADS=1 python -m benchmarks.measure_implementations",
        "machine": describe_machine() | {"threads": torch.get_num_threads()},
        "packages": {name: version(name) for name in PACKAGES.values()},
        "steps": options.steps,
    }
    for case, make in cases.items():
        result[case] = {name: compare(name, make, options.steps) for name in PACKAGES}
        print(case, result[case], flush=True)
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def make_model(name: str, kind: str) -> Trainee:
    """Return the small FastSpeech 2, which trains on synthetic clips."""
    config = RunConfig(
        training=TrainingConfig(batch_size=8, device="cpu", steps=999, seed=0),
        family=Choice("fastspeech2", {"size": "small"}),
        optimizer=Choice(name, VALUES[name] | {"implementation": kind}),
        schedule=Choice("constant"),
    )
    state = make_setup(config, "small", Path(tempfile.mkdtemp()))
    return Trainee(state.optimizer, partial(train_step, state))


def small() -> list[Tensor]:
    """Return the weights (any shape) of the small FastSpeech 2."""
    return make_model("schedule_free_adamw", OURS).weights()


def make_stack(name: str, kind: str, weights: list[Tensor]) -> Trainee:
    """Return a stack of weights (any shape) that gets new gradients after every step."""
    optimizer = build(name, weights, VALUES[name] | {"implementation": kind})
    return Trainee(optimizer, lambda step: optimizer.step())


def compare(name: str, make: Callable[[str, str], Trainee], steps: int) -> dict[str, object]:
    """Run both in turn; return their speeds, the ratio, and how far apart they end."""
    ours, theirs, twin = make(name, OURS), make(name, THEIRS), make(name, THEIRS)
    for weight in twin.weights():
        weight.mul_(1 + 1e-7)
    start = [weight.clone() for weight in theirs.weights()]
    pairs = []
    for step in range(1, steps + 1):
        is_stack = make is not make_model
        for trainee in (ours, theirs, twin) if is_stack else ():
            _set_gradients(trainee, step)
        pairs.append([_seconds_of(partial(trainee.step, step)) for trainee in (ours, theirs)])
        twin.step(step)
    # The first steps allocate the state.
    ratios = sorted(theirs_s / ours_s for ours_s, theirs_s in pairs[2:])
    moved = _distance(start, theirs.weights())
    apart, noise = (
        _distance(trainee.weights(), theirs.weights()) / moved for trainee in (ours, twin)
    )
    quarter = len(ratios) // 4
    return {
        "timbre_steps_per_s": round(1 / statistics.median(ours_s for ours_s, _ in pairs[2:]), 2),
        "package_steps_per_s": round(1 / statistics.median(both[1] for both in pairs[2:]), 2),
        "times_as_fast": round(statistics.median(ratios), 3),
        "quartiles": [round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)],
        "distance": float(f"{apart:.2g}"),
        "distance_by_rounding": float(f"{noise:.2g}"),
    }


def _seconds_of(run: Callable[[], object]) -> float:
    """Return the CPU seconds of this thread, which other programs disturb less than time does."""
    began = time.thread_time()
    run()
    return time.thread_time() - began


def _set_gradients(trainee: Trainee, step: int) -> None:
    """Give every weight the gradient of a noisy bowl."""
    generator = torch.Generator().manual_seed(step)
    for group in trainee.optimizer.param_groups:
        for weight in group["params"]:
            noise = torch.randn(weight.shape, generator=generator)
            weight.grad = weight.detach() + 0.1 * noise


def _distance(first: list[Tensor], second: list[Tensor]) -> float:
    """Return the Euclidean distance of two lists of tensors (any shape)."""
    squares = [(a - b).double().square().sum() for a, b in zip(first, second, strict=True)]
    return float(torch.stack(squares).sum().sqrt())


if __name__ == "__main__":
    main()

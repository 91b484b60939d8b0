"""Measure what a step of every optimizer costs, as a ratio to PyTorch's fused AdamW.

    OMP_NUM_THREADS=1 python -m benchmarks.measure_optimizers
    # writes benchmarks/results/optimizers.json

The parameters have the shapes of the language model of XTTS v2, narrower and with fewer layers.
Every optimizer steps in turn with AdamW in one process; a ratio compares the CPU time of
neighbours, so that what else the machine does falls on both. Host reads are the operators that
bring a number from the device to the host, counted in one step; on a GPU each one is a wait.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from assets.make_base import describe_machine
from assets.make_demo import ASSETS
from trainer.core.errors import MissingDependency
from trainer.core.options import build_options
from trainer.core.registry import discover
from trainer.core.specs import OptimizerSpec

WIDTH, LAYERS = 384, 18
NUM_TEXT_TOKENS, NUM_AUDIO_TOKENS = 6681, 1026
READING = {"aten._local_scalar_dense.default", "aten.equal.default", "aten.nonzero.default"}
"""Operators whose result is a number on the host."""
# Steps that make up a whole cycle; the mean over them counts.
CYCLES = {"soap": 10, "soap_ademamix": 10, "kron": 3, "muon": 3, "mars_shampoo": 3}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "prodigy package": ("prodigy", {"implementation": "package"}),
    "prodigy slice_p=11": ("prodigy", {"slice_p": 11}),
    "schedule_free_adamw package": ("schedule_free_adamw", {"implementation": "package"}),
    "adamw cautious": ("adamw", {"cautious": True}),
}


@dataclass
class HostReads(TorchDispatchMode):
    """Counts the operators that bring numbers to the host."""

    count: int = 0
    names: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator and count it if it reads."""
        if str(func) in READING:
            self.count += 1
        return func(*args, **kwargs or {})


def main() -> None:
    """Read the command line, measure and write the result."""
    parser = argparse.ArgumentParser(description="Measure the optimizers.")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", default="", help="names, separated by commas; empty: all")
    parser.add_argument(
        "--out", type=Path, default=ASSETS.parent / "benchmarks" / "results" / "optimizers.json"
    )
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    weights = make_weights()
    result = {
        "command": "OMP_NUM_THREADS=1 python -m benchmarks.measure_optimizers",
        "machine": describe_machine() | {"threads": torch.get_num_threads()},
        "parameters": {
            "tensors": len(weights),
            "millions": round(sum(weight.numel() for weight in weights) / 1e6, 1),
            "width": WIDTH,
            "layers": LAYERS,
        },
        "repeats": options.repeats,
        "optimizers": dict(measure_all(weights, names, options.repeats)),
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def make_weights() -> list[Tensor]:
    """Return weights in the shapes of the language model of XTTS v2; any shape."""
    shapes: list[tuple[int, ...]] = []
    for _ in range(LAYERS):
        shapes += [(WIDTH,)] * 4
        for inputs, outputs in ((1, 3), (1, 1), (1, 4), (4, 1)):
            shapes += [(inputs * WIDTH, outputs * WIDTH), (outputs * WIDTH,)]
    for count in (NUM_TEXT_TOKENS, NUM_AUDIO_TOKENS):
        shapes += [(count, WIDTH)] * 2 + [(count,)]
    shapes += [(WIDTH,)] * 2
    generator = torch.Generator().manual_seed(0)
    return [0.02 * torch.randn(shape, generator=generator) for shape in shapes]


def measure_all(
    weights: list[Tensor], names: list[str], repeats: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what was measured of every optimizer that can be built here."""
    specs = discover("trainer.optimizers", OptimizerSpec)
    cases = {name: (name, dict[str, Any]()) for name in specs} | VARIANTS
    cases["adamw foreach"] = ("adamw", {})
    for label, (name, values) in cases.items():
        if names and label not in names:
            continue
        baseline = build("adamw", weights, {})
        try:
            optimizer = build(name, weights, values)
        except MissingDependency as error:
            print(f"{label}: left out, {error}")
            continue
        if label == "adamw foreach":
            groups = [{"params": group["params"]} for group in optimizer.param_groups]
            optimizer = torch.optim.AdamW(groups, foreach=True)
        cycle = CYCLES.get(name, 1)
        found = measure(optimizer, baseline, cycle, repeats if cycle == 1 else 1)
        print(f"{label}: {found}", flush=True)
        yield label, found
        del optimizer, baseline
        gc.collect()


def build(name: str, weights: list[Tensor], values: dict[str, Any]) -> torch.optim.Optimizer:
    """Return an optimizer over copies of the weights (any shape), each with a gradient."""
    spec = discover("trainer.optimizers", OptimizerSpec)[name]
    generator = torch.Generator().manual_seed(1)
    groups: list[dict[str, Any]] = []
    for are_matrices in (True, False):
        chosen = [
            nn.Parameter(weight.clone()) for weight in weights if is_tall(weight) == are_matrices
        ]
        for weight in chosen:
            weight.grad = 0.01 * torch.randn(weight.shape, generator=generator)
        decay = 0.01 if are_matrices else 0.0
        groups.append({"params": chosen, "weight_decay": decay, "are_matrices": are_matrices})
    return spec.build(groups, build_options(spec.options, values, name), torch.device("cpu"))


def is_tall(weight: Tensor) -> bool:
    """Whether a weight (any shape) is a matrix of the layers: no vector, table or output layer."""
    return weight.dim() == 2 and weight.size(0) not in (NUM_TEXT_TOKENS, NUM_AUDIO_TOKENS)


def measure(
    optimizer: torch.optim.Optimizer, baseline: torch.optim.Optimizer, cycle: int, repeats: int
) -> dict[str, Any]:
    """Time both in turn; return the ratio of neighbours, milliseconds and host reads of a step."""
    for _ in range(2):
        optimizer.step()
        baseline.step()
    pairs = []
    for _ in range(repeats):
        usual = [seconds_of(baseline) for _ in range(min(cycle, 3))]
        pairs.append((statistics.mean(seconds_of(optimizer) for _ in range(cycle)), min(usual)))
    # Last, since a dispatch mode makes a step slow.
    with HostReads() as reads:
        optimizer.step()
    ratios = sorted(seconds / usual for seconds, usual in pairs)
    return {
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratios[0], 2), round(ratios[-1], 2)],
        "ms": round(1e3 * statistics.median(seconds for seconds, _ in pairs), 1),
        "adamw_ms": round(1e3 * statistics.median(usual for _, usual in pairs), 1),
        "host_reads": reads.count,
    }


def seconds_of(optimizer: torch.optim.Optimizer) -> float:
    """Return the CPU seconds of one step of this thread."""
    started = time.thread_time()
    optimizer.step()
    return time.thread_time() - started


if __name__ == "__main__":
    main()

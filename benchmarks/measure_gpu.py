"""Measure what the project promises of a GPU, in one call of at most ten minutes.

    python -m benchmarks.measure_gpu --json benchmarks/results/gpu.json

First the speed of a large product and what a whole step costs with each optimizer, as a ratio to
AdamW in the same process; then the ladder of `python -m trainer measure` with the rows of the
goals, and each goal with what was found. The file is written anew after every row. `--device cpu
--size tiny --goals` tries the road without a GPU.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trainer.config.resolve import resolve
from trainer.core.atomic_io import write_atomic
from trainer.core.errors import TimbreError
from trainer.core.registry import discover
from trainer.core.run_config import Choice, RunConfig, TrainingConfig
from trainer.core.specs import OptimizerSpec
from trainer.core.train_state import TrainState, World
from trainer.profiling.benchmark import Benchmark, BenchmarkPlan
from trainer.profiling.benchmark.benchmark import describe_machine
from trainer.profiling.benchmark.goals import check_goals
from trainer.profiling.benchmark.report import format_trial
from trainer.profiling.synthetic_batches import (
    make_synthetic,
    make_synthetic_clips,
    synthetic_spec_of,
)
from trainer.training.assemble import build_train_state, seed_everything, take_device
from trainer.training.loop import train_step

OPTIMIZERS = (
    "adamw", "prodigy", "mars_adamw", "schedule_free_adamw", "ademamix", "soap", "muon", "kron"
)  # fmt: skip
CYCLES = {"soap": 10, "kron": 3}
"""Steps that make up a whole cycle; the mean over one counts."""
SHARE_OF_OPTIMIZERS = 0.3
"""The most of the time that the optimizers may take."""
STUCK_S = 90
"""On a GPU no optimizer may take longer; one that hangs costs its own row."""


def main() -> None:
    """Read the command line, measure, and write one file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", default="full", help="of XTTS: tiny, medium or full")
    parser.add_argument("--goals", action="store_true", default=None, help="also without a GPU")
    parser.add_argument("--only-optimizers", nargs="+", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only_optimizers:
        measure_optimizers(chosen.device, chosen.size, chosen.json, chosen.only_optimizers)
        return
    began = time.monotonic()
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python", "-m", "benchmarks.measure_gpu", *sys.argv[1:]])
    _write(chosen.json, {"command": command, "goals": [], "optimizers": {"rows": {}}})
    report = measure_in_children(chosen.device, chosen.size, chosen.json, chosen.minutes)
    found = report["optimizers"]
    left = chosen.minutes - (time.monotonic() - began) / 60
    for benchmark in _measure_ladder(chosen, left):
        measurement = benchmark.measurement
        report |= {
            "machine": measurement.machine,
            "seconds": round(time.monotonic() - began, 1),
            "goals": check_goals(measurement, found.get("matmul_tflops")),
            "ladder": measurement.to_json(),
        }
        # After every row, so that a call that is cut off leaves what it has.
        _write(chosen.json, report)
    print(_as_table(report))


def measure_in_children(device: str, size: str, path: Path, minutes: float) -> dict[str, Any]:
    """Measure the optimizers in processes that leave no memory behind and have to keep their time.

    One that dies loses the row it was at; another goes on with the rest. Returns the report.
    """
    ends_at = time.monotonic() + 60 * SHARE_OF_OPTIMIZERS * minutes
    words = [
        "-m",
        "benchmarks.measure_gpu",
        "--json",
        str(path),
        "--device",
        device,
        "--size",
        size,
    ]
    while True:
        report = _read(path)
        rows, left_s = report["optimizers"]["rows"], ends_at - time.monotonic()
        names = [name for name in OPTIMIZERS if name not in rows]
        if not names or left_s <= 0:
            return report
        command = [sys.executable, *words, "--only-optimizers", *names]
        try:
            code = subprocess.run(command, timeout=left_s, check=False).returncode
        except subprocess.TimeoutExpired:
            return _read(path)
        report = _read(path)
        rows = report["optimizers"]["rows"]
        lost = [name for name in OPTIMIZERS if name not in rows]
        if lost:
            rows[lost[0]] = {"failed": f"its process ended with {code}"}
            _write(path, report)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _write(path: Path, report: dict[str, Any]) -> None:
    """Write a report as a whole: a run that is cut off leaves the one before."""
    write_atomic(path, json.dumps(report, indent=1) + "\n")


def _measure_ladder(chosen: argparse.Namespace, minutes: float) -> Any:
    """Yield the ladder after each of its rows."""
    config = make_config(chosen.device)
    plan = BenchmarkPlan(config, size=chosen.size, minutes=minutes, goals=chosen.goals)
    benchmark = Benchmark(plan)
    for row in benchmark.trials():
        print(format_trial(row, benchmark.measurement.trial("fp32")), flush=True)
        yield benchmark
    yield benchmark


def make_config(device: str, boxes: dict[str, dict[str, Any]] | None = None) -> RunConfig:
    """Return what is measured: XTTS at batch 8."""
    training = TrainingConfig(batch_size=8, device=device, steps=1000)
    return RunConfig(family=Choice("xtts"), training=training, optimizations=boxes or {})


def measure_optimizers(device: str, size: str, path: Path, names: Sequence[str]) -> None:
    """Add what a whole step takes to a report, optimizer after optimizer, each beside AdamW's."""
    machine = take_device(device)
    boxes: dict[str, dict[str, Any]] = {"sdpa": {}, "mixed_precision": {}}
    if machine.has_tf32:
        boxes["tf32"] = {}
    report = _read(path)
    found = report["optimizers"]
    found["what"] = "whole steps of 8 of the longest clips, ratio of medians to AdamW's just before"
    found["boxes"], found["machine"] = sorted(boxes), describe_machine(machine)
    if "matmul_tflops" not in found:
        found["matmul_tflops"] = None
        _write(path, report)
        with suppress(RuntimeError):
            is_gpu = machine.kind == "cuda"
            found["matmul_tflops"] = measure_matmul(torch.device(machine.torch_name), is_gpu)
    _write(path, report)
    with tempfile.TemporaryDirectory() as folder:
        state = make_setup(make_config(device, boxes), size, Path(folder))
        for name in names:
            # Ends the process even where it hangs in the driver.
            signal.alarm(STUCK_S if machine.kind == "cuda" else 0)
            try:
                found["rows"][name] = _row_of(state, name)
            except (TimbreError, RuntimeError) as error:
                found["rows"][name] = {"failed": (str(error).splitlines() or ["no word"])[0]}
                if isinstance(error, torch.AcceleratorError):
                    raise  # it stays for the life of the process
            finally:
                signal.alarm(0)
                _write(path, report)
        state.train_batches.close()


def _row_of(state: TrainState, name: str) -> dict[str, float]:
    usual_s = time_optimizer(state, "adamw", 5)
    seconds = time_optimizer(state, name, CYCLES.get(name, 5))
    return {
        "ratio": round(seconds / usual_s, 3),
        "s_per_step": round(seconds, 5),
        "adamw_s_per_step": round(usual_s, 5),
    }


def make_setup(config: RunConfig, size: str, folder: Path) -> TrainState:
    """Return a TrainState of a random network of a size on clips of the usual longest."""
    seed_everything(0)
    entries, machine = resolve(config), take_device(config.training.device)
    clips = make_synthetic_clips(
        [synthetic_spec_of(entries).longest_s] * 2 * config.training.batch_size
    )
    dataset = make_synthetic(config, entries, clips, size)
    model = entries.family.load(None, entries.family_options, dataset.corpus.facts)
    model = model.to(torch.device(machine.torch_name))
    state = build_train_state(
        folder, config, entries, dataset, model=model, machine=machine, world=World()
    )
    for optimization, options in entries.optimizations:
        optimization.apply(state, options)
    return state


def time_optimizer(state: TrainState, name: str, steps: int) -> float:
    """Return the seconds of a whole step: the median, or the mean of one cycle of a longer one."""
    spec = discover("trainer.optimizers", OptimizerSpec)[name]
    entries = resolve(state.config.with_values(optimizer=Choice(name)))
    state.optimizer.state.clear()
    groups = [{**group, "params": list(group["params"])} for group in state.optimizer.param_groups]
    kept = ("params", "param_names", "weight_decay", "are_matrices")
    groups = [{key: group[key] for key in kept if key in group} for group in groups]
    state.optimizer = spec.build(groups, entries.optimizer_options, state.device)
    state.optimizer_spec = spec
    # So small that the weights stay in range whoever steps.
    state.base_lr = 1e-9
    for step in (1, 2):
        train_step(state, step)
    seconds = []
    for step in range(3, 3 + steps):
        _wait_for(state.device)
        began = time.perf_counter()
        train_step(state, step)
        _wait_for(state.device)
        seconds.append(time.perf_counter() - began)
    return statistics.mean(seconds) if name in CYCLES else statistics.median(seconds)


def measure_matmul(device: torch.device, is_gpu: bool) -> float:
    """Return the TFLOP/s of a large product in bf16, the median of some."""
    width, repeats = (8192, 20) if is_gpu else (512, 3)
    matrix = torch.randn(width, width, device=device).bfloat16()
    seconds = []
    for _ in range(repeats):
        _wait_for(device)
        began = time.perf_counter()
        torch.mm(matrix, matrix)
        _wait_for(device)
        seconds.append(time.perf_counter() - began)
    return round(2 * width**3 / statistics.median(seconds) / 1e12, 3)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _as_table(report: dict[str, Any]) -> str:
    """Return the goals and the optimizers as tables for a document."""
    lines = ["", "| goal | wanted | found | reached | by |", "|---|---|---|---|---|"]
    for goal in report["goals"]:
        found = "" if goal["found"] is None else f"{goal['found']:.2f}"
        reached = {True: "yes", False: "no", None: "not measured"}[goal["is_reached"]]
        lines.append(f"| {goal['goal']} | {goal['target']} | {found} | {reached} | {goal['by']} |")
    lines += ["", "| optimizer | whole step beside AdamW's |", "|---|---|"]
    for name, row in report["optimizers"].get("rows", {}).items():
        lines.append(f"| {name} | {row.get('ratio', row.get('failed'))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""Measure what the project promises of a GPU, in one call of at most ten minutes.

    python -m assets.measure_gpu --json assets/measured/gpu.json

First the speed of a large product and what a whole step costs with each optimizer, as a ratio to
AdamW in the same process; then the ladder of `python -m trainer measure` with the rows of the
goals, and each goal with what was found. `--device cpu --size tiny --goals` tries the road without
a GPU.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trainer.assemble import build_setup, choose_device, seed_everything
from trainer.catalog import discover
from trainer.config import Choice, RunConfig, TrainingConfig
from trainer.entries import resolve
from trainer.errors import TimbreError
from trainer.loop import train_step
from trainer.measure import Ladder, MeasurePlan
from trainer.measure.goals import judge_goals
from trainer.measure.ladder import describe_machine
from trainer.measure.report import line_of
from trainer.rehearsal import imagine, make_up_clips, rehearsal_of
from trainer.setup import Setup, World
from trainer.specs import OptimizerSpec

OPTIMIZERS = (
    "adamw", "prodigy", "mars_adamw", "schedule_free_adamw", "ademamix", "soap", "muon", "kron"
)  # fmt: skip
CYCLES = {"soap": 10, "kron": 3}
"""Steps that make up a whole cycle; the mean over one counts."""
SHARE_OF_OPTIMIZERS = 0.3
"""The most of the time that the optimizers may take."""


def main() -> None:
    """Read the command line, measure, and write one file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--size", default="full", help="of XTTS: tiny, medium or full")
    parser.add_argument("--goals", action="store_true", default=None, help="also without a GPU")
    parser.add_argument("--only-optimizers", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.only_optimizers:
        measure_optimizers(chosen.device, chosen.size, chosen.only_optimizers)
        return
    began = time.monotonic()
    found = _optimizers_in_a_child(chosen.device, chosen.size, chosen.minutes)
    left = chosen.minutes - (time.monotonic() - began) / 60
    report = {"command": " ".join(["python", "-m", "assets.measure_gpu", *sys.argv[1:]])}
    for ladder in _measure_ladder(chosen, left):
        measurement = ladder.measurement
        report |= {
            "machine": measurement.machine,
            "seconds": round(time.monotonic() - began, 1),
            "goals": judge_goals(measurement, found.get("matmul_tflops")),
            "optimizers": found,
            "ladder": measurement.to_json(),
        }
        # After every row, so that a call that is cut off leaves what it has.
        chosen.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(_as_table(report))


def _optimizers_in_a_child(device: str, size: str, minutes: float) -> dict[str, Any]:
    """Measure the optimizers in a process that leaves no memory behind and has to keep its time."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "optimizers.json"
        words = ["--json", str(out), "--device", device, "--size", size]
        command = [sys.executable, "-m", "assets.measure_gpu", *words]
        limit_s = 60 * SHARE_OF_OPTIMIZERS * minutes
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([*command, "--only-optimizers", str(out)], timeout=limit_s, check=False)
        return json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}


def _measure_ladder(chosen: argparse.Namespace, minutes: float) -> Any:
    """Yield the ladder after each of its rows."""
    config = make_config(chosen.device)
    plan = MeasurePlan(config, size=chosen.size, minutes=minutes, goals=chosen.goals)
    ladder = Ladder(plan)
    for row in ladder.rows():
        print(line_of(row, ladder.measurement.row("fp32")), flush=True)
        yield ladder
    yield ladder


def make_config(device: str, boxes: dict[str, dict[str, Any]] | None = None) -> RunConfig:
    """Return what is measured: XTTS at batch 8."""
    training = TrainingConfig(batch_size=8, device=device, steps=1000)
    return RunConfig(family=Choice("xtts"), training=training, optimizations=boxes or {})


def measure_optimizers(device: str, size: str, out: Path) -> None:
    """Write the seconds of whole steps of every optimizer, each beside AdamW's, as they come."""
    machine = choose_device(device)
    boxes: dict[str, dict[str, Any]] = {"sdpa": {}, "mixed_precision": {}}
    if machine.kind == "cuda":
        boxes["tf32"] = {}
    config = make_config(device, boxes)
    report: dict[str, Any] = {
        "what": "whole steps of 8 of the longest clips, ratio of medians to AdamW's of just before",
        "boxes": sorted(boxes),
        "machine": describe_machine(machine),
        "matmul_tflops": measure_matmul(torch.device(machine.torch_name), machine.kind == "cuda"),
        "rows": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        setup = make_setup(config, size, Path(folder))
        for name in OPTIMIZERS:
            usual_s = time_optimizer(setup, "adamw", 5)
            try:
                seconds = time_optimizer(setup, name, CYCLES.get(name, 5))
            except (TimbreError, RuntimeError) as error:
                report["rows"][name] = {"failed": str(error).splitlines()[0]}
                continue
            report["rows"][name] = {
                "ratio": round(seconds / usual_s, 3),
                "s_per_step": round(seconds, 5),
                "adamw_s_per_step": round(usual_s, 5),
            }
            out.write_text(json.dumps(report), encoding="utf-8")
        setup.train_batches.close()


def make_setup(config: RunConfig, size: str, folder: Path) -> Setup:
    """Return a Setup of a random network of a size on clips of the usual longest."""
    seed_everything(0)
    entries, machine = resolve(config), choose_device(config.training.device)
    clips = make_up_clips([rehearsal_of(entries).longest_s] * 2 * config.training.batch_size)
    dataset = imagine(config, entries, clips, size)
    model = entries.family.load(None, entries.family_options, dataset.corpus.facts)
    model = model.to(torch.device(machine.torch_name))
    setup = build_setup(
        folder, config, entries, dataset, model=model, machine=machine, world=World()
    )
    for optimization, options in entries.optimizations:
        optimization.apply(setup, options)
    return setup


def time_optimizer(setup: Setup, name: str, steps: int) -> float:
    """Return the seconds of a whole step: the median, or the mean of one cycle of a longer one."""
    spec = discover("trainer.optimizers", OptimizerSpec)[name]
    entries = resolve(setup.config.with_values(optimizer=Choice(name)))
    setup.optimizer.state.clear()
    groups = [{**group, "params": list(group["params"])} for group in setup.optimizer.param_groups]
    kept = ("params", "param_names", "weight_decay", "are_matrices")
    groups = [{key: group[key] for key in kept if key in group} for group in groups]
    setup.optimizer = spec.build(groups, entries.optimizer_options, setup.device)
    setup.optimizer_spec = spec
    # So small that the weights stay in range whoever steps.
    setup.base_lr = 1e-9
    for step in (1, 2):
        train_step(setup, step)
    seconds = []
    for step in range(3, 3 + steps):
        _wait_for(setup.device)
        began = time.perf_counter()
        train_step(setup, step)
        _wait_for(setup.device)
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

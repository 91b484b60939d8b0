"""Measure what long logs and many runs cost: python -m benchmarks.measure_long_runs --work DIR.

A made-up run of a million steps has the metrics of a real one. Its log is generated in DIR, and
every command is measured in its own process: seconds, processor seconds and peak memory. Then a
folder of 10, 100 and 1,000 runs is opened as the page opens it, in processor seconds.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from assets.make_base import describe_machine
from trainer import Run, RunConfig
from trainer.core.atomic_io import write_atomic
from trainer.core.events import CheckpointSaved, RunFinished, RunStarted, ValidationDone
from trainer.core.metrics import (
    EPOCH,
    GRAD_NORM,
    LR,
    METRICS,
    PERF,
    TRAIN_LOSS,
    VAL_LOSS,
    train_part,
)

ROOT = Path(__file__).resolve().parent.parent
_CHILD = """
import json, resource, runpy, sys, time
began = time.perf_counter()
sys.argv[0] = "trainer"
try:
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
except SystemExit:
    pass
sys.stdout.flush()
used = resource.getrusage(resource.RUSAGE_SELF)
told = [time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]
print(json.dumps(told), file=sys.stderr)
"""
_MANY = """
import json, resource, sys, time
from pathlib import Path
from trainer.runs.run_store import RunStore
from webui.run_list import RunList
told, began = {}, 0.0
def lap(name):
    global began
    told[name] = time.process_time() - began
    began = time.process_time()
store = RunStore(Path(sys.argv[1]))
table = RunList(store)
began = time.process_time()
store.attach()
lap("attach_cpu_s")
table.active()
lap("first_active_cpu_s")
table.active()
lap("next_active_cpu_s")
table.rows()
lap("first_table_cpu_s")
table.rows()
lap("next_table_cpu_s")
store.status(store.names()[-1])
lap("one_status_cpu_s")
told["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(told))
"""


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", required=True, type=Path, help="a folder for the runs")
    parser.add_argument("--steps", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--runs", type=int, nargs="*", default=[10, 100, 1_000])
    parser.add_argument("--steps-a-run", type=int, default=300, help="in the folder of many runs")
    default = ROOT / "benchmarks" / "results" / "long_runs.json"
    parser.add_argument("--out", type=Path, default=default)
    chosen = parser.parse_args()
    report: dict[str, Any] = {
        "command": "python -m benchmarks.measure_long_runs --work DIR",
        "machine": describe_machine(),
        "long": {str(steps): measure_long(chosen.work, steps) for steps in chosen.steps},
        "many": {
            str(count): measure_many(chosen.work, count, chosen.steps_a_run)
            for count in chosen.runs
        },
    }
    write_atomic(chosen.out, json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


def measure_long(work: Path, steps: int) -> dict[str, Any]:
    """Measure each command on one long run, which is generated first and removed at the end."""
    run = make_run(work / f"long-{steps}", steps)
    try:
        commands: dict[str, tuple[str, ...]] = {
            "first status": ("status", str(run.folder)),
            "status": ("status", str(run.folder)),
            "metrics --json": ("metrics", str(run.folder), "--json"),
            "metrics --csv": ("metrics", str(run.folder), "--csv"),
        }
        return {"log_mib": run.events.path.stat().st_size / 2**20} | {
            name: _measure(words) for name, words in commands.items()
        }
    finally:
        shutil.rmtree(run.folder)


def measure_many(work: Path, count: int, steps: int) -> dict[str, float]:
    """Measure what the page does with a folder of many runs, twice: the second server start."""
    folder = work / f"many-{count}"
    shutil.rmtree(folder, ignore_errors=True)
    for number in range(count):
        make_run(folder / f"run-{number:04d}", steps)
    command = [sys.executable, "-c", _MANY, str(folder)]
    told: dict[str, float] = {}
    for prefix in ("", "restarted_"):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        told |= {prefix + name: value for name, value in json.loads(done.stdout).items()}
    shutil.rmtree(folder)
    return told


def make_run(folder: Path, steps: int) -> Run:
    """Create a finished run with a log of so many steps, written as the trainer writes it."""
    shutil.rmtree(folder, ignore_errors=True)
    run = Run.create(folder, RunConfig())
    facts = {"device": "made up", "parameters": 1_000_000, "torch": "none"}
    run.events.append(RunStarted(1, steps, max(1, steps // 100), facts, {}))
    now, every = time.time(), max(1, steps // 10)
    with run.events.path.open("a", encoding="utf-8") as file:
        for step in range(1, steps + 1):
            values = {"time": now + step, "type": "StepDone", "step": step}
            file.write(json.dumps(values | {"metrics": _metrics_at(step)}) + "\n")
            if step % every == 0:
                file.flush()  # `append` writes through a handle of its own
                run.events.append(ValidationDone(step, {VAL_LOSS: 1 + 1 / step}))
                path = f"checkpoints/step-{step:08d}"
                run.events.append(CheckpointSaved(step, path, True, 10**6, 0.1))
    run.events.append(RunFinished("finished", steps))
    return run


def _metrics_at(step: int) -> dict[str, float]:
    """Return numbers with as many digits as measured ones, under the names of a real run."""
    wave = math.sin(step) / 10
    parts = ("mel", "duration", "pitch", "energy")
    names = [TRAIN_LOSS, GRAD_NORM, LR, *map(train_part, parts)]
    values = {name: 1 / (1 + step / 7) + wave for name in names}
    values |= {name: 1.1 + wave for name in METRICS if name.startswith(PERF)}
    return values | {EPOCH: step / 300}


def _measure(words: tuple[str, ...]) -> dict[str, float]:
    """Run a command of the trainer in its own process; return what it took."""
    command = [sys.executable, "-c", _CHILD, *words]
    done = subprocess.run(
        command,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    seconds, cpu_s, peak_mib = json.loads(done.stderr.splitlines()[-1])
    return {"seconds": seconds, "cpu_s": cpu_s, "peak_mib": peak_mib}


if __name__ == "__main__":
    main()

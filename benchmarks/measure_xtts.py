"""Measure XTTS v2 at full size on this machine: python -m benchmarks.measure_xtts --work DIR.

Random weights in the published layout are made once, then trained for two steps, resumed for two
more and exported, each in a process of its own whose peak memory the system reports. Numbers are
about memory and time; random weights do not speak.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas

from assets.make_base import describe_machine
from assets.make_xtts import FULL, make_folder
from trainer.core.device import GIB

ASSETS = Path(__file__).parent.parent / "assets"
NUM_CLIPS = 6


def main() -> None:
    """Run every phase and write the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", required=True, type=Path, help="a folder for about 25 GB")
    parser.add_argument("--base", type=Path, help="a full-size folder to use instead of a new one")
    parser.add_argument(
        "--out", type=Path, default=ASSETS.parent / "benchmarks" / "results" / "xtts_full.json"
    )
    parser.add_argument("--flags", default="", help="further flags of `train`, e.g. --sdpa")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    os.environ["TIMBRE_CACHE"] = str(args.work / "cache")
    base = args.base or args.work / "base"
    if not base.is_dir():
        make_folder(base, FULL, seed=0)
    report = {
        "command": "python -m benchmarks.measure_xtts --work DIR"
        + (f" --flags '{args.flags}'" if args.flags else ""),
        "machine": describe_machine(),
        "phases": measure_phases(args.work, base, args.flags.split()),
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


def measure_phases(work: Path, base: Path, flags: list[str]) -> dict[str, dict[str, float]]:
    """Return seconds and peak GiB of training two steps, of resuming for two, and of the export."""
    run, out = work / f"run-{time.time_ns()}", work / f"export-{time.time_ns()}"
    config = [
        "--family", "xtts", "--base", str(base), "--train-csv", str(write_clips(work, "train")),
        "--eval-csv", str(write_clips(work, "eval")), "--steps", "4", "--batch-size", "1",
        "--preview-every", "never", "--validate-every", "4 steps", "--save-every", "2 steps",
        "--run", str(run), *flags,
    ]  # fmt: skip
    phases = {"train_two_steps_and_stop": measure(["train", *config], stop_at=(run, 2))}
    phases["resume_to_step_four"] = measure(["resume", str(run)])
    phases["export"] = measure(["export", str(run), "--out", str(out)])
    size = sum(path.stat().st_size for path in out.iterdir())
    phases["export"]["size_gib"] = round(size / GIB, 2)
    newest = max((run / "checkpoints").glob("step-*"))
    size = sum(path.stat().st_size for path in newest.iterdir())
    phases["resume_to_step_four"]["checkpoint_gib"] = round(size / GIB, 2)
    return phases


def measure(words: list[str], stop_at: tuple[Path, int] | None = None) -> dict[str, float]:
    """Run a command of the trainer; return its seconds and its peak resident memory."""
    started = time.monotonic()
    child = subprocess.Popen([sys.executable, "-m", "trainer", *words])
    if stop_at is not None:
        _stop_after(*stop_at, child)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in (0, 10):
        raise SystemExit(f"trainer {words[0]} ended with code {child.returncode}.")
    seconds = round(time.monotonic() - started, 1)
    return {"seconds": seconds, "peak_gib": round(usage.ru_maxrss / 2**20, 2)}


def _stop_after(run: Path, step: int, child: "subprocess.Popen[bytes]") -> None:
    """Ask a run to stop once it has done a step."""
    log = run / "events.jsonl"
    mark = f'"step":{step},'
    while child.poll() is None:
        text = log.read_text(encoding="utf-8") if log.is_file() else ""
        if mark in text.replace(" ", ""):
            subprocess.run([sys.executable, "-m", "trainer", "stop", str(run)], check=True)
            return
        time.sleep(0.2)


def write_clips(work: Path, split: str) -> Path:
    """Write a CSV of the first clips of a split of the demo corpus."""
    source = ASSETS / "demo" / f"{split}.csv"
    table = pandas.read_csv(source, sep="|").head(NUM_CLIPS)
    table["audio_file"] = [str(source.parent / name) for name in table["audio_file"]]
    path = work / f"{split}.csv"
    table.to_csv(path, sep="|", index=False)
    return path


if __name__ == "__main__":
    main()

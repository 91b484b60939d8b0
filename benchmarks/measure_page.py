"""Measure what an open page costs training: python -m benchmarks.measure_page --work DIR.

One run trains the demo voice in its own process, on one thread. A page server runs all the time;
in turns of some steps nobody looks, or Chromium shows the Live tab and polls once a second. Counted
are the processor seconds of the training process a step, and what it asked of the operating system:
bytes and calls of reading and writing, which do not depend on how busy the machine is. The first
turn is left out. Needs the packages of tests/requirements.txt and Chromium.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from assets.make_base import describe_machine
from trainer import Run, RunConfig
from trainer.core.run_config import DataConfig, TrainingConfig

ASSETS = Path(__file__).parent.parent / "assets"
PROJECT = ASSETS.parent
CSV = {"train_csv": str(ASSETS / "demo/train.csv"), "eval_csv": str(ASSETS / "demo/eval.csv")}


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", required=True, type=Path, help="a folder for the run")
    parser.add_argument("--turns", type=int, default=9, help="of each kind")
    parser.add_argument("--steps", type=int, default=40, help="a turn")
    parser.add_argument(
        "--out", type=Path, default=ASSETS.parent / "benchmarks" / "results" / "page_open.json"
    )
    chosen = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    runs = chosen.work.absolute() / "runs"
    with _server(runs) as url:
        turns = measure(runs, url, chosen.turns, chosen.steps)
    report = {
        "command": "python -m benchmarks.measure_page --work DIR",
        "what": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
        "machine": describe_machine(),
        "steps_a_turn": chosen.steps,
        **judge(turns),
        "turns": turns,
    }
    chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: report[key] for key in report if key != "turns"}, indent=1))


@contextmanager
def _server(runs: Path) -> Iterator[str]:
    """Start the page over a folder of runs, and end it."""
    runs.mkdir(parents=True)
    command = [sys.executable, str(PROJECT / "app.py"), "--runs", str(runs), "--no-browser"]
    command += ["--no-token", "--port", "7990"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=runs.parent)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "http://" in line:
                yield "http://" + line.split("http://")[1].split()[0]
                break
    finally:
        process.terminate()
        process.wait(30)


def measure(runs: Path, url: str, num_turns: int, steps: int) -> list[dict[str, Any]]:
    """Train through turns with and without a page, and tell what each cost the training process."""
    from playwright.sync_api import sync_playwright

    total = 10 * num_turns * steps  # more than enough; the run is stopped
    training = TrainingConfig(
        steps=total, batch_size=8, validate_every="never", save_every="never",
        preview_every="never", device="cpu",
    )  # fmt: skip
    run = Run.create(runs / "watched", RunConfig(data=DataConfig(**CSV), training=training))
    run.start()
    turns: list[dict[str, Any]] = []
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        _wait_for(run, 20)
        owner = run.owner()
        assert owner is not None
        trainer = psutil.Process(owner.pid)
        for turn in range(2 * num_turns + 1):
            is_open = bool(turn % 2)
            page = browser.new_page() if is_open else None
            if page:
                page.goto(url + "/?tab=live")
            _wait_for(run, _steps_done(run) + 3)
            turns.append({"open": is_open, **_cost(trainer, run, steps)})
            print(turns[-1], flush=True)
            if page:
                page.close()
        browser.close()
    run.request("stop")
    run.wait()
    return turns[1:]


def _cost(trainer: psutil.Process, run: Run, steps: int) -> dict[str, float]:
    """Return what a step of the training process costs over the next steps."""
    before, begun = _counters(trainer), _steps_done(run)
    _wait_for(run, begun + steps)
    after, ended = _counters(trainer), _steps_done(run)
    return {key: (after[key] - before[key]) / (ended - begun) for key in before}


def _counters(trainer: psutil.Process) -> dict[str, float]:
    with trainer.oneshot():
        cpu, io = trainer.cpu_times(), trainer.io_counters()
    return {
        "cpu_s": cpu.user + cpu.system,
        "reads": io.read_count,
        "writes": io.write_count,
        "bytes_written": io.write_chars,  # type: ignore[attr-defined]
        "bytes_read": io.read_chars,  # type: ignore[attr-defined]
    }


def _steps_done(run: Run) -> int:
    return run.status().step


def _wait_for(run: Run, step: int) -> None:
    while _steps_done(run) < step:
        if run.status().state not in ("running", "starting", "queued"):
            raise SystemExit(f"The run is {run.status().state}; see {run.folder / 'log.txt'}")
        time.sleep(0.2)


def judge(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians with and without a page, and the ratio of neighbouring turns."""
    closed = [turn for turn in turns if not turn["open"]]
    opened = [turn for turn in turns if turn["open"]]
    ratios = [a["cpu_s"] / b["cpu_s"] for a, b in zip(opened, closed, strict=False)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    medians = {
        name: {key: statistics.median(t[key] for t in kind) for key in kind[0] if key != "open"}
        for name, kind in (("closed", closed), ("open", opened))
    }
    spread = {
        "median": round(middle, 4),
        "quarter": round(low, 4),
        "three_quarters": round(high, 4),
    }
    return {"open_over_closed_cpu": spread, "a_step": medians}


if __name__ == "__main__":
    main()

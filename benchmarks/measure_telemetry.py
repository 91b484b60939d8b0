"""Measure what telemetry costs a step: python -m benchmarks.measure_telemetry --work DIR.

Every step of a small XTTS run is done in two ways, in turns the first: bare, and followed by all
that the loop does to report it (StepMetrics, the instability alerts, events in the log and on the
disk). The network has 6 layers of width 256 and eight short clips of the demo corpus a step, about
a hundredth of the work of the published size with long clips, so shares there are smaller. CPU
seconds of the training thread count, and no other thread computes.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

import torch

from assets.make_base import describe_machine
from assets.make_xtts import make_folder
from trainer.callbacks.instability import InstabilityMonitor
from trainer.core.events import Publisher
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.core.train_state import TrainState, World
from trainer.models.xtts.network.sizes import TINY, GptSizes, Sizes, VocoderSizes
from trainer.runs.run import Run
from trainer.training.assemble import assemble
from trainer.training.loop import train_step
from trainer.training.metrics import StepMetrics

ASSETS = Path(__file__).parent.parent / "assets"
SIZES = Sizes(
    GptSizes(layers=6, width=256, heads=4, num_text_tokens=6681),
    TINY.dvae,
    VocoderSizes(latent_width=256, speaker_width=32, width=32),
    TINY.speaker,
)


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", required=True, type=Path, help="a folder for base and run")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument(
        "--out", type=Path, default=ASSETS.parent / "benchmarks" / "results" / "telemetry.json"
    )
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.work.mkdir(parents=True, exist_ok=True)
    os.environ["TIMBRE_CACHE"] = str(chosen.work / "cache")
    run, state = prepare(chosen.work)
    report = {
        "command": "OMP_NUM_THREADS=1 python -m benchmarks.measure_telemetry --work DIR",
        "what": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
        "machine": describe_machine(),
        **measure(run, state, chosen.pairs),
    }
    state.train_batches.close()
    chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


def prepare(work: Path) -> tuple[Run, TrainState]:
    """Make the base if there is none, and assemble a run on the demo corpus."""
    base = work / "base"
    if not base.is_dir():
        make_folder(base, SIZES)
    config = RunConfig(
        data=DataConfig(str(ASSETS / "demo" / "train.csv"), eval_fraction=0.0),
        training=TrainingConfig(
            steps=10_000, batch_size=8, preview_every="never", device="cpu", loader_workers=0
        ),
        family=Choice("xtts"),
        optimizer=Choice("adamw"),
        base=str(base),
    )
    run = Run.create(work / f"run-{time.time_ns()}", config)
    return run, assemble(run.folder, config, world=World(), emit=run.events.append)


def measure(run: Run, state: TrainState, num_pairs: int) -> dict[str, float]:
    """Return CPU seconds of a step, of telling about it, and the share of the one in the other."""
    emit = Publisher(
        run.events.append, InstabilityMonitor(run.folder, state.config, state.base_lr, {})
    )
    step_metrics = StepMetrics(state, emit)
    train_step(state, 1)
    bare, told, telling = [], [], []
    for pair in range(num_pairs):
        step = pair + 2
        for is_told in (pair % 2 == 0, pair % 2 == 1):
            start = time.thread_time()
            metrics = train_step(state, step)
            if not is_told:
                bare.append(time.thread_time() - start)
                continue
            middle = time.thread_time()
            step_metrics.record(step, metrics)
            told.append(time.thread_time() - start)
            telling.append(time.thread_time() - middle)
    step_s, telling_s = statistics.median(bare), statistics.median(telling)
    return {
        "pairs": num_pairs,
        "bare_step_cpu_s": round(step_s, 4),
        "told_step_cpu_s": round(statistics.median(told), 4),
        "median_difference_of_pairs_cpu_s": round(
            statistics.median(
                with_it - without for with_it, without in zip(told, bare, strict=True)
            ),
            4,
        ),
        "telling_cpu_s": round(telling_s, 6),
        "telling_most_cpu_s": round(max(telling), 6),
        "telling_share_of_a_step": round(telling_s / step_s, 6),
    }


if __name__ == "__main__":
    main()

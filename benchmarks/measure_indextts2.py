"""Measure IndexTTS-2 at full size on this machine.

    python -m benchmarks.measure_indextts2 --work DIR

Random weights in the published layout and a made-up manifest of precomputed features are written
once, then trained for two steps, resumed for two more and exported, each in a process of its own
whose peak memory the system reports. Numbers are about memory and time.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from assets.make_base import describe_machine
from benchmarks.measure_xtts import measure
from trainer.core.device import GIB
from trainer.models.indextts2.checkpoint.base_folder import config_of
from trainer.models.indextts2.checkpoint.export import write_published
from trainer.models.indextts2.network.gpt import UnifiedVoice
from trainer.models.indextts2.network.sizes import Sizes

ASSETS = Path(__file__).parent.parent / "assets"
NUM_CLIPS = 6
SECONDS = 6.0


def main() -> None:
    """Run every phase and write the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", required=True, type=Path, help="a folder for about 30 GB")
    parser.add_argument(
        "--out", type=Path, default=ASSETS.parent / "benchmarks" / "results" / "indextts2_full.json"
    )
    parser.add_argument("--flags", default="", help="further flags of `train`, e.g. --sdpa")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    os.environ["TIMBRE_CACHE"] = str(args.work / "cache")
    if not (args.work / "base" / "gpt.pth").is_file():
        make_folder(args.work / "base", Sizes())
    report = {
        "command": "python -m benchmarks.measure_indextts2 --work DIR"
        + (f" --flags='{args.flags}'" if args.flags else ""),
        "machine": describe_machine(),
        "phases": measure_phases(args.work, args.flags.split()),
    }
    args.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


def make_folder(folder: Path, sizes: Sizes) -> None:
    """Write gpt.pth, config.yaml and a bpe.model that stands for one, as texts come as ids."""
    torch.manual_seed(0)
    state: dict[str, Tensor] = UnifiedVoice(sizes, with_conditioning=True).state_dict()
    config = {"gpt": config_of(sizes), "version": 2.0}
    write_published(folder, state, config, bpe_model=b"none", licence="Random numbers.")


def write_manifest(work: Path, split: str, sizes: Sizes) -> Path:
    """Write a manifest of random features in the form of the community's preprocessing."""
    lines = []
    for number in range(NUM_CLIPS):
        rng = np.random.default_rng(number)
        num_codes = int(SECONDS * 50)
        arrays = {
            "codes": rng.integers(0, sizes.start_audio, num_codes).astype(np.int32),
            "condition": rng.standard_normal((sizes.num_latents, sizes.width), np.float32),
            "emo_vec": rng.standard_normal(sizes.width, np.float32),
            "text_ids": rng.integers(3, 12000, 60).astype(np.int32),
        }
        row = {"id": f"{split}{number}", "text": "noise", "speaker": "nobody", "duration": SECONDS}
        for name, values in arrays.items():
            path = work / split / f"{name}-{number}.npy"
            path.parent.mkdir(exist_ok=True)
            np.save(path, values)
            row[f"{name}_path"] = str(path)
        lines.append(json.dumps(row | {"text_len": 60, "code_len": num_codes}))
    path = work / f"{split}.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def measure_phases(work: Path, flags: list[str]) -> dict[str, dict[str, float]]:
    """Return seconds and peak GiB of training two steps, of resuming for two, and of the export."""
    number = len(list(work.glob("run-*")))
    run, out = work / f"run-{number}", work / f"export-{number}"
    lists = [str(write_manifest(work, split, Sizes())) for split in ("train", "eval")]
    config = [
        "--family", "indextts2", "--base", str(work / "base"), "--train-csv", lists[0],
        "--eval-csv", lists[1], "--steps", "4", "--batch-size", "1", "--validate-every",
        "100 steps", "--save-every", "2 steps", "--run", str(run), *flags,
    ]  # fmt: skip
    phases = {"train_two_steps_and_stop": measure(["train", *config], stop_at=(run, 2))}
    phases["resume_to_step_four"] = measure(["resume", str(run)])
    phases["export"] = measure(["export", str(run), "--out", str(out)])
    size = sum(path.stat().st_size for path in out.iterdir())
    phases["export"]["size_gib"] = round(size / GIB, 2)
    return phases


if __name__ == "__main__":
    main()

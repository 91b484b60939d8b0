"""What buckets, the token budget and the cache save, on the demo corpus and FastSpeech 2 (CPU).

python -m benchmarks.measure_data [--rounds 5] trains on the same clips for an epoch with batches as
they come, with buckets and with a token budget, in turn, by process CPU seconds; then it computes
the features of 20 clips and reads them from the cache.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from assets.make_base import describe_machine
from trainer.config.resolve import find_family
from trainer.core.run_config import DataConfig, RunConfig
from trainer.core.specs import ModelFamily
from trainer.core.types import Clip, Features
from trainer.data.features.cache import FeatureCache
from trainer.data.features.dataset import Dataset, prepare_dataset
from trainer.data.features.loader import BatchPlan, ClipBatches

_DEMO = Path(__file__).parent.parent / "assets" / "demo"
Counts = Callable[[Features], dict[str, float]]


def make_batches(
    family: ModelFamily, dataset: Dataset, counts: Counts, max_positions: int = 0
) -> ClipBatches:
    """Return batches of 8 clips, or as many as a token budget takes."""
    plan = BatchPlan(8, 1, 1, 0, 1234, True, max_positions)
    features = {clip.id: dataset.corpus.features[clip.id] for clip in dataset.train}
    audio_s = {clip.id: clip.duration_s for clip in dataset.train}
    return ClipBatches(plan, features, counts, family.collate, audio_s=audio_s)


def train_epoch(
    family: ModelFamily, model: torch.nn.Module, batches: ClipBatches, epoch: int
) -> tuple[float, float]:
    """Go through an epoch forwards and backwards: process CPU seconds, and padded over real."""
    first = epoch * batches.steps_per_epoch + 1
    padded = real = 0
    began = time.process_time()
    for step in range(first, first + batches.steps_per_epoch):
        for batch in batches.micro_batches(step):
            total = torch.stack(list(family.losses(model, batch).values())).sum()
            model.zero_grad()
            total.backward()
            mask: Tensor = batch["mel_mask"]
            padded, real = padded + mask.numel(), real + int(mask.sum())
    return time.process_time() - began, padded / real


def measure_batches(
    family: ModelFamily, dataset: Dataset, rounds: int
) -> dict[str, dict[str, float]]:
    """Compare the three ways of making batches, one after the other in every round."""
    model = family.load(None, family.options(), dataset.corpus.facts).train()
    longest = max(family.counts(dataset.corpus.features[c.id])["frames"] for c in dataset.train)

    def as_they_come(features: Features) -> dict[str, float]:
        # Buckets go by the first entry: with one length for all there are none.
        return {"same": 1.0} | family.counts(features)

    ways = {
        "as they come": make_batches(family, dataset, as_they_come),
        "buckets": make_batches(family, dataset, family.counts),
        "token budget": make_batches(family, dataset, family.counts, int(4 * longest)),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for epoch in range(rounds + 1):
        for name, batches in ways.items():
            found[name].append(train_epoch(family, model, batches, epoch))
    report = {}
    plain = [seconds for seconds, _ in found["as they come"][1:]]
    for name, rows in found.items():
        seconds = [row[0] for row in rows[1:]]
        ratios = sorted(a / b for a, b in zip(plain, seconds, strict=True))
        report[name] = {
            "cpu_s_per_epoch": round(statistics.median(seconds), 3),
            "steps_per_epoch": ways[name].steps_per_epoch,
            "padded_over_real": round(statistics.mean(row[1] for row in rows[1:]), 4),
            "times_faster": round(statistics.median(ratios), 3),
            "times_faster_least": round(ratios[0], 3),
            "times_faster_most": round(ratios[-1], 3),
        }
        ways[name].close()
    return report


def measure_cache(family: ModelFamily, clips: Sequence[Clip], folder: Path) -> dict[str, float]:
    """Compare computing the features of clips with reading them, every byte, from the cache."""
    featurizer = family.featurizer(None, family.options())
    featurizer(clips[0])
    began = time.process_time()
    for clip in clips:
        featurizer(clip)
    computing = (time.process_time() - began) / len(clips)
    for _ in range(2):
        cache = FeatureCache(folder)
        features, _ = cache.collect(clips, featurizer, workers=0, progress=lambda *told: None)
    began = time.process_time()
    for clip in clips:
        for array in features[clip.id].values():
            array.sum()
    first = (time.process_time() - began) / len(clips)
    began = time.process_time()
    for clip in clips:
        for array in features[clip.id].values():
            array.sum()
    again = (time.process_time() - began) / len(clips)
    return {
        "computing_ms": round(1e3 * computing, 3),
        "from_cache_with_checksum_ms": round(1e3 * first, 4),
        "from_cache_ms": round(1e3 * again, 4),
        "times_faster_with_checksum": round(computing / first, 1),
        "times_faster": round(computing / again, 1),
    }


def main() -> None:
    """Measure and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=_DEMO.parents[1] / "benchmarks" / "results" / "data.json"
    )
    chosen = parser.parse_args()
    data = DataConfig(train_csv=str(_DEMO / "train.csv"), eval_csv=str(_DEMO / "eval.csv"))
    family = find_family("fastspeech2")
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(data=data)
        dataset = prepare_dataset(
            Path(folder), config, family, family.options(), lambda event: None
        )
        report = {
            "command": "OMP_NUM_THREADS=1 python -m benchmarks.measure_data",
            "what": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
            "machine": describe_machine(),
            "clips": len(dataset.train),
            "rounds": chosen.rounds,
            "batches": measure_batches(family, dataset, chosen.rounds),
            "cache": measure_cache(family, dataset.train[:20], Path(folder) / "cache"),
        }
    chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()

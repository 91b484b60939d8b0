"""Measure the aligners: does the neural one find the word starts that the monophone one finds?

    python -m benchmarks.measure_aligners --steps 300 1000 3000
    # writes benchmarks/results/aligners.json

Both align the demo corpus, characters from scratch, on one CPU. Nobody marked the true starts, so
the figures tell how far the two agree, not which of them is right.
"""

import argparse
import json
import time
from typing import Any

import numpy as np

from assets.make_base import describe_machine
from assets.make_demo import ASSETS
from trainer.core.run_config import DataConfig
from trainer.core.specs import Corpus
from trainer.data.lists.manifest import read_manifest
from trainer.models._layers.mel import MelSettings
from trainer.models.fastspeech2 import Options, tokens
from trainer.models.fastspeech2.training.featurizer import SpeechFeaturizer
from trainer.models.fastspeech2.training.survey import survey


def main() -> None:
    """Align with both, compare, write the result down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[300, 1000, 3000])
    steps_to_try = parser.parse_args().steps
    demo = ASSETS / "demo"
    lists = DataConfig(train_csv=str(demo / "train.csv"), eval_csv=str(demo / "eval.csv"))
    clips = read_manifest(lists).clips
    featurizer = SpeechFeaturizer(MelSettings(), trim_silence=False)
    features = {clip.id: featurizer(clip) for clip in clips}

    def align(**options: Any) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the word starts (words,) in ms and what finding them took."""
        wall, cpu = time.monotonic(), time.process_time()
        corpus = survey(features, clips, Options(**options), None, lambda *_: None)
        took = {"wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu}
        return find_word_starts(corpus), {name: round(value, 1) for name, value in took.items()}

    expected, took = align()
    found: dict[str, Any] = {"monophone": took | {"words": len(expected)}}
    for steps in steps_to_try:
        starts, took = align(aligner="neural", aligner_steps=steps)
        found[f"neural, {steps} steps"] = took | compare(starts - expected)
    shown = " ".join(map(str, steps_to_try))
    result = {
        "command": f"python -m benchmarks.measure_aligners --steps {shown}",
        "machine": describe_machine(),
        "clips": len(clips),
        "minutes": round(sum(clip.duration_s for clip in clips) / 60, 1),
        "aligners": found,
    }
    text = json.dumps(result, indent=2) + "\n"
    (ASSETS.parent / "benchmarks" / "results" / "aligners.json").write_text(text, encoding="utf-8")
    print(text)


def find_word_starts(corpus: Corpus) -> np.ndarray:
    """Return where each word of each clip begins, (words,) in ms."""
    settings = MelSettings()
    frame_ms = 1000 * settings.hop_length / settings.sample_rate
    heard = np.array([tokens.is_sound(symbol) for symbol in corpus.facts["symbols"]])
    parts = np.array([symbol != "'" for symbol in corpus.facts["symbols"]])
    found = []
    for _, clip in sorted(corpus.features.items()):
        starts = np.cumsum(clip["durations"]) - clip["durations"]
        sounds, parting = heard[clip["tokens"]], (parts & ~heard)[clip["tokens"]]
        found.append(starts[1:][sounds[1:] & parting[:-1]] * frame_ms)
    return np.concatenate(found)


def compare(offsets: np.ndarray) -> dict[str, float]:
    """Sum up how far word starts lie apart; offsets: (words,) in ms, later is positive."""
    apart = np.abs(offsets)
    shares = {f"within_{ms}_ms": round(float(np.mean(apart <= ms)), 3) for ms in (25, 50, 100)}
    return shares | {
        "median_apart_ms": round(float(np.median(apart)), 1),
        "median_later_ms": round(float(np.median(offsets)), 1),
    }


if __name__ == "__main__":
    main()

"""Measure how often the race's verdict tells equal optimizers apart, and what it can tell.

    python -m benchmarks.measure_verdict
    # writes benchmarks/results/verdict.json, in about a minute

Losses are drawn: all optimizers are equal, seeds differ by three times what runs scatter by. Rates
of false verdicts are of whole races; 5 % are promised for one that is free of wild scatters.
"""

import argparse
import json
import random
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median

from assets.make_demo import ASSETS
from trainer.race.seed_variance import estimate_seed_variance
from trainer.race.verdict import Comparison, compare, min_detectable_difference

RUNS, SEEDS_APART = 400, 3.0
SCATTERS: dict[str, Callable[[int, random.Random], float]] = {
    "all alike": lambda place, draw: 1.0,
    "log-normal, sigma 0.5": lambda place, draw: draw.lognormvariate(0.0, 0.5),
    "one five times the others": lambda place, draw: 5.0 if place == 1 else 1.0,
    "the baseline three times the others": lambda place, draw: 3.0 if place == 0 else 1.0,
}


def main() -> None:
    """Read the command line, draw races and write what their verdicts were."""
    parser = argparse.ArgumentParser(description="Measure the race's verdict on drawn losses.")
    parser.add_argument(
        "--out", type=Path, default=ASSETS.parent / "benchmarks" / "results" / "verdict.json"
    )
    out = parser.parse_args().out
    found = [
        measure(num_contenders, num_seeds, scatter)
        for num_contenders in (3, 17)
        for num_seeds in (2, 3, 4)
        for scatter in SCATTERS
    ]
    result = {"command": "python -m benchmarks.measure_verdict", "races": RUNS, "found": found}
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measure(num_contenders: int, num_seeds: int, scatter: str) -> dict[str, object]:
    """Return the share of races with a false verdict, and half the interval in scatters."""
    draw = random.Random(1)
    wrong, half, alone = [], [], []
    for _ in range(RUNS):
        scores = draw_race(num_contenders, num_seeds, scatter, draw)
        told, own = judge(scores, is_shared=True), judge(scores, is_shared=False)
        wrong.append(any(one.outcome != "no difference" for one in told))
        half.append(median((one.high or 0) - (one.difference or 0) for one in told))
        alone.append(median((one.high or 0) - (one.difference or 0) for one in own))
    return {
        "entrants": num_contenders,
        "seeds": num_seeds,
        "scatter": scatter,
        "false verdicts": round(mean(wrong), 3),
        "half interval": round(median(half), 2),
        "half interval by its own seeds alone": round(median(alone), 2),
        "foretold": round(min_detectable_difference(num_seeds, num_contenders), 2),
    }


def draw_race(
    num_contenders: int, num_seeds: int, scatter: str, draw: random.Random
) -> dict[str, dict[int, float]]:
    """Return losses of equal optimizers."""
    seeds = [draw.gauss(0.0, SEEDS_APART) for _ in range(num_seeds)]
    return {
        str(place): {seed: effect + draw.gauss(0.0, deviation) for seed, effect in enumerate(seeds)}
        for place in range(num_contenders)
        for deviation in [SCATTERS[scatter](place, draw)]
    }


def judge(scores: dict[str, dict[int, float]], *, is_shared: bool) -> list[Comparison]:
    """Return all comparisons with the first entrant, with a scatter learnt from all or without."""
    scatter = estimate_seed_variance(scores) if is_shared else None
    rivals = [name for name in scores if name != "0"]
    return [
        compare(
            name,
            "0",
            "steps",
            scores[name],
            scores["0"],
            num_rivals=len(rivals),
            seed_variance=scatter,
        )
        for name in rivals
    ]


if __name__ == "__main__":
    main()

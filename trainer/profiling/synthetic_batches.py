"""Build synthetic datasets, to estimate or benchmark a configuration before there are clips."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.config.resolve import Entries
from trainer.core.errors import ConfigError
from trainer.core.options import describe
from trainer.core.run_config import RunConfig
from trainer.core.specs import ModelFamily, SyntheticSpec
from trainer.core.types import Batch, Clip
from trainer.data.features.dataset import Dataset
from trainer.data.features.loader import BatchPlan, ClipBatches

_DRAWS = 32
"""Steps to search for the largest batch if a family draws lengths at random (chosen by hand)."""


def synthetic_spec_of(entries: Entries) -> SyntheticSpec:
    """Return how a family makes synthetic features.

    Raises:
        ConfigError: the family cannot make them.
    """
    if entries.family.synthetic is None:
        raise ConfigError(
            f"{entries.family.label} cannot be estimated without clips. Add --train-csv FILE."
        )
    return entries.family.synthetic


def make_synthetic_clips(durations_s: Sequence[float]) -> list[Clip]:
    """Return numbered clips of these lengths, without audio or text."""
    return [
        # 22,050 Hz is a placeholder: no audio is read.
        Clip(f"clip{number}", "", "", "nobody", "en", seconds, 22050, "train", "", number)
        for number, seconds in enumerate(durations_s)
    ]


def longest_clips(clips: Sequence[Clip], count: int) -> list[Clip]:
    """Return clips that may form the largest batch: the longest by audio and by text.

    The shortest clip is included. Fewer clips than `count` are repeated, as epochs repeat them.
    """
    by_sound = sorted(clips, key=lambda clip: -clip.duration_s)[: 2 * count]
    shortest = min(clips, key=lambda clip: clip.duration_s)
    by_text = sorted(clips, key=lambda clip: -len(clip.text))[:count]
    # Twice as many by audio as by text (chosen by hand): audio mostly determines the length.
    found = list({clip.id: clip for clip in (*by_sound, *by_text, shortest)}.values())
    return [
        replace(found[place % len(found)], id=f"{place}") for place in range(max(count, len(found)))
    ]


def make_synthetic(
    config: RunConfig, entries: Entries, clips: Sequence[Clip], size: str
) -> Dataset:
    """Return a synthetic dataset; only the lengths and texts of the clips are used."""
    synthetic_spec = synthetic_spec_of(entries)
    if size and size not in synthetic_spec.sizes:
        known = ", ".join(synthetic_spec.sizes)
        raise ConfigError(f"{entries.family.label} has no size '{size}'. Use one of: {known}.")
    base = Path(config.base) if config.base else None
    corpus = synthetic_spec.make_synthetic(base, entries.family_options, clips, size)
    return Dataset(tuple(clips), (), corpus)


def largest_batches(config: RunConfig, entries: Entries, dataset: Dataset) -> list[Batch]:
    """Return candidates for the micro-batch that needs the most memory.

    Usually that is the batch of the longest clips. Under a token budget it may also be the batch of
    the shortest, because it holds more clips and some memory is needed per clip at any length.
    """
    training, features = config.training, dataset.corpus.features

    def length(clip: Clip) -> float:
        found = entries.family.counts(features[clip.id])
        return next(iter(found.values()), clip.duration_s)

    ordered = sorted(dataset.train, key=length, reverse=True)
    # Without a token budget the batch size is fixed, so the longest clips make the largest batch.
    if not training.max_positions:
        return [_largest_draw(entries, dataset, ordered[: training.batch_size], training.seed)]
    alike = [ordered[0], ordered[-1]]
    # A clip longer than the budget still gets a batch of its own.
    groups = [[clip] * max(1, int(training.max_positions / length(clip))) for clip in alike]
    return [_largest_draw(entries, dataset, group, training.seed) for group in groups]


def _largest_draw(entries: Entries, dataset: Dataset, clips: Sequence[Clip], seed: int) -> Batch:
    """Return the largest micro-batch that these clips make over several steps."""
    family, features = entries.family, dataset.corpus.features
    named = {f"{place}": clip for place, clip in enumerate(clips)}
    drawn_from = {name: features[clip.id] for name, clip in named.items()}
    batches = ClipBatches(
        BatchPlan(len(clips), 1, 1, 0, seed, True),
        drawn_from,
        family.counts,
        family.collate,
        audio_s={name: clip.duration_s for name, clip in named.items()},
        # Families that cut random segments draw them as in training, so the sizes are real.
        draw=family.draws(drawn_from) if family.draws else None,
    )
    try:
        num_draws = _DRAWS if family.draws else 1
        drawn = [batches.micro_batches(step)[0] for step in range(1, num_draws + 1)]
    finally:
        batches.close()
    return max(drawn, key=lambda batch: sum(value.nbytes for value in batch.tensors.values()))


def spread_lengths(longest_s: float, count: int, seed: int) -> list[float]:
    """Return seeded random lengths in seconds, spread around 0.57 of the longest.

    Mean 0.57 and deviation 0.22 of the longest resemble clip lengths in corpora of read speech.
    """
    # Clipped, because a normal distribution also yields negative lengths.
    drawn = np.random.default_rng(seed).normal(0.57, 0.22, count).clip(0.1, 1.0)
    return [round(longest_s * float(share), 2) for share in drawn]


def without_size(words: Sequence[str], family: ModelFamily, size: str) -> list[str]:
    """Remove `--size` from the words of a command, or keep it if the family has such an option."""
    kept, skip = [], False
    for word in words:
        if not (skip or word.partition("=")[0] == "--size"):
            kept.append(word)
        skip = word == "--size"
    assert family.synthetic is not None
    choices = [info.choices for info in describe(family.options) if info.name == "size"]
    is_known = bool(choices) and set(family.synthetic.sizes) <= set(choices[0])
    return [*kept, "--size", size] if is_known else kept

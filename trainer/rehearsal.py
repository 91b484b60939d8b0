"""Rehearsal: datasets of clips that do not exist, to try a configuration before there are any."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.config import RunConfig
from trainer.data.batching import BatchPlan, ClipBatches
from trainer.data.types import Batch, Clip
from trainer.dataset import Dataset
from trainer.entries import Entries
from trainer.errors import ConfigError
from trainer.options import describe
from trainer.specs import ModelFamily, Rehearsal

_DRAWS = 32
"""Steps of which the largest batch is taken, where a family draws some lengths anew."""


def rehearsal_of(entries: Entries) -> Rehearsal:
    """Return how a family rehearses.

    Raises:
        ConfigError: it does not.
    """
    if entries.family.rehearsal is None:
        raise ConfigError(
            f"{entries.family.label} cannot be tried without clips. Give --train-csv FILE."
        )
    return entries.family.rehearsal


def make_up_clips(durations_s: Sequence[float]) -> list[Clip]:
    """Return clips of these lengths without audio and text, named by their numbers."""
    return [
        Clip(f"clip{number}", "", "", "nobody", "en", seconds, 22050, "train", "", number)
        for number, seconds in enumerate(durations_s)
    ]


def longest_clips(clips: Sequence[Clip], count: int) -> list[Clip]:
    """Return the clips of which some batch may be the largest: the longest by sound and by text.

    The shortest clip is among them. Fewer clips than `count` are repeated, as passes repeat them.
    """
    by_sound = sorted(clips, key=lambda clip: -clip.duration_s)[: 2 * count]
    shortest = min(clips, key=lambda clip: clip.duration_s)
    by_text = sorted(clips, key=lambda clip: -len(clip.text))[:count]
    found = list({clip.id: clip for clip in (*by_sound, *by_text, shortest)}.values())
    return [
        replace(found[place % len(found)], id=f"{place}") for place in range(max(count, len(found)))
    ]


def imagine(config: RunConfig, entries: Entries, clips: Sequence[Clip], size: str) -> Dataset:
    """Return a dataset of clips of which nothing but length and text is looked at."""
    rehearsal = rehearsal_of(entries)
    if size and size not in rehearsal.sizes:
        known = ", ".join(rehearsal.sizes)
        raise ConfigError(f"{entries.family.label} has no size '{size}'. There is: {known}.")
    base = Path(config.base) if config.base else None
    corpus = rehearsal.imagine(base, entries.family_options, clips, size)
    return Dataset(tuple(clips), (), corpus)


def largest_batches(config: RunConfig, entries: Entries, dataset: Dataset) -> list[Batch]:
    """Return the micro-batches of which one needs most memory.

    That is the one of the longest clips; under a token budget it may also be the one of the
    shortest, which holds more of what every clip brings whatever its length.
    """
    training, features = config.training, dataset.corpus.features

    def length(clip: Clip) -> float:
        found = entries.family.counts(features[clip.id])
        return next(iter(found.values()), clip.duration_s)

    ordered = sorted(dataset.train, key=length, reverse=True)
    if not training.max_positions:
        return [_largest_draw(entries, dataset, ordered[: training.batch_size], training.seed)]
    alike = [ordered[0], ordered[-1]]
    groups = [[clip] * max(1, int(training.max_positions / length(clip))) for clip in alike]
    return [_largest_draw(entries, dataset, group, training.seed) for group in groups]


def _largest_draw(entries: Entries, dataset: Dataset, clips: Sequence[Clip], seed: int) -> Batch:
    """Return the micro-batch of clips, each as often as it is named."""
    family, features = entries.family, dataset.corpus.features
    named = {f"{place}": clip for place, clip in enumerate(clips)}
    drawn_from = {name: features[clip.id] for name, clip in named.items()}
    batches = ClipBatches(
        BatchPlan(len(clips), 1, 1, 0, seed, True),
        drawn_from,
        family.counts,
        family.collate,
        audio_s={name: clip.duration_s for name, clip in named.items()},
        draw=family.draws(drawn_from) if family.draws else None,
    )
    try:
        num_draws = _DRAWS if family.draws else 1
        drawn = [batches.of_step(step)[0] for step in range(1, num_draws + 1)]
    finally:
        batches.close()
    return max(drawn, key=lambda batch: sum(value.nbytes for value in batch.tensors.values()))


def spread_lengths(longest_s: float, count: int, seed: int) -> list[float]:
    """Return lengths in seconds as read speech has them: mean 0.57 of the longest, seeded."""
    drawn = np.random.default_rng(seed).normal(0.57, 0.22, count).clip(0.1, 1.0)
    return [round(longest_s * float(share), 2) for share in drawn]


def without_size(words: Sequence[str], family: ModelFamily, size: str) -> list[str]:
    """Return the words of a command without `--size`, unless the family has an option of the same
    sizes, which then is this one."""
    kept, skip = [], False
    for word in words:
        if not (skip or word.partition("=")[0] == "--size"):
            kept.append(word)
        skip = word == "--size"
    assert family.rehearsal is not None
    choices = [info.choices for info in describe(family.options) if info.name == "size"]
    is_known = bool(choices) and set(family.rehearsal.sizes) <= set(choices[0])
    return [*kept, "--size", size] if is_known else kept

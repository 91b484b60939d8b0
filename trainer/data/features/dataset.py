"""Prepare the dataset of a run: choose its clips once, compute their features, make batches."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path

from trainer.core.atomic_io import write_atomic
from trainer.core.device import MIB
from trainer.core.errors import DataError, StopRequested
from trainer.core.events import Emit, Notice, PhaseChanged
from trainer.core.options import describe, to_values
from trainer.core.run_config import RunConfig
from trainer.core.specs import Corpus, ModelFamily
from trainer.core.train_state import World
from trainer.core.types import Clip
from trainer.data.features.array_file import DamagedFeatures
from trainer.data.features.balance import count_repeats
from trainer.data.features.cache import FeatureCache, content_hash, default_cache_folder
from trainer.data.features.loader import BatchPlan, ClipBatches
from trainer.data.lists.ledger import mark_unusable
from trainer.data.lists.manifest import read_manifest

# Bytes. Smaller files of a base checkpoint are vocabularies and settings, which a survey depends
# on; larger ones are weights, which it does not, and hashing gigabytes would delay every start.
_SMALL_FILE = 10 * MIB


@dataclass(frozen=True)
class Dataset:
    """The usable clips of a run by split, with the corpus that the family made of them.

    `fingerprint` is a hash of everything that determined it: files, texts and options.
    """

    train: tuple[Clip, ...]
    val: tuple[Clip, ...]
    corpus: Corpus
    fingerprint: str = ""


def prepare_dataset(
    folder: Path, config: RunConfig, family: ModelFamily, options: object, emit: Emit
) -> Dataset:
    """Choose the clips (once per run), compute or load their features, and survey the corpus.

    Raises:
        DataError: no clip is left to train on.
    """
    clips = choose_clips(folder, config, emit)
    usable, unusable, corpus, key = _survey_clips(folder, config, family, options, clips, emit)
    _report_unusable(emit, clips, unusable | corpus.unusable)
    mark_unusable(folder / "ledger.csv", unusable | corpus.unusable)
    kept = [clip for clip in usable if clip.id in corpus.features]
    train = tuple(clip for clip in kept if clip.split == "train")
    if not train:
        raise DataError(_nothing_left(clips, unusable | corpus.unusable))
    val = tuple(clip for clip in kept if clip.split == "val")
    held_out = sum(clip.split == "val" for clip in clips)
    if held_out and not val:
        text = f"None of the {held_out} eval clips can be used, so this run has no validation."
        emit(Notice("warning", text, "Choose an eval CSV with clips that the model can use."))
    return Dataset(train, val, corpus, key)


def _survey_clips(
    folder: Path,
    config: RunConfig,
    family: ModelFamily,
    options: object,
    clips: list[Clip],
    emit: Emit,
) -> tuple[list[Clip], dict[str, str], Corpus, str]:
    """Return the usable clips, the reason for each unusable one, the corpus and its cache key."""
    base = Path(config.base) if config.base else None
    featurizer = family.featurizer(base, options)
    report = _reporter(folder, emit)
    workers = loader_workers(config.training.loader_workers)

    def survey() -> tuple[list[Clip], dict[str, str], Corpus, str]:
        cache = FeatureCache(default_cache_folder() / family.name)
        features, unusable = cache.collect(clips, featurizer, workers=workers, progress=report)
        names, _ = cache.names(clips, featurizer)
        usable = [clip for clip in clips if clip.id in features]
        # Before the survey, which may take minutes and needs at least one clip.
        if not any(clip.split == "train" for clip in usable):
            raise DataError(_nothing_left(clips, unusable))
        key = _survey_key(family, options, base, usable, names)
        corpus = cache.remember(
            key, features, lambda: family.survey(features, usable, options, base, report)
        )
        return usable, unusable, corpus, key

    try:
        return survey()
    except DamagedFeatures as error:
        # The damaged file has been removed, so a second pass computes it again.
        emit(Notice("warning", str(error), "No action needed: they are computed again."))
        return survey()


def choose_clips(folder: Path, config: RunConfig, emit: Emit) -> list[Clip]:
    """Return the run's clips, read from its CSV at the first start and from then on the same.

    The choice is written to `clips.json`, so editing the CSV later cannot change the run.
    """
    path = folder / "clips.json"
    if path.is_file():
        values = json.loads(path.read_text(encoding="utf-8"))
        return [Clip(**clip) for clip in values["clips"]]
    report = _reporter(folder, emit)
    report("Checking the clips", 0, 0)
    manifest = read_manifest(config.data, seed=config.training.seed, progress=report)
    for note in manifest.notes:
        emit(Notice("info", note))
    if manifest.problems:
        first = manifest.problems[0]
        count = len(manifest.problems)
        text = f"{count} of {count + len(manifest.clips)} rows cannot be used. The first: {first}"
        emit(Notice("warning", text, "The ledger on the Data tab lists all of them."))
    if not manifest.train:
        raise DataError(
            f"There are no clips to train on: all {len(manifest.problems)} rows have problems. "
            + (f"The first: {manifest.problems[0]}" if manifest.problems else "The CSV is empty.")
        )
    manifest.write_csv(folder / "ledger.csv")
    values = {"clips": [asdict(clip) for clip in manifest.clips]}
    write_atomic(path, json.dumps(values, ensure_ascii=False))
    return list(manifest.clips)


def make_batches(
    dataset: Dataset, config: RunConfig, family: ModelFamily, world: World, *, pin_memory: bool
) -> tuple[ClipBatches, ClipBatches | None]:
    """Return the train batches and the val batches (None if there are no val clips).

    All val clips form one step, so validation losses are exact means over the split.
    """
    training = config.training

    def batches(clips: tuple[Clip, ...], plan: BatchPlan) -> ClipBatches:
        features = {clip.id: dataset.corpus.features[clip.id] for clip in clips}
        # A reference conditions the voice. Validation may use any clip as one; training must not
        # use a val clip.
        drawn_from = features if plan.shuffle else dataset.corpus.features
        return ClipBatches(
            plan,
            features,
            family.counts,
            family.collate,
            audio_s={clip.id: clip.duration_s for clip in clips},
            draw=family.draws(drawn_from) if family.draws else None,
            repeats=count_repeats(clips, config.data.language_balance) if plan.shuffle else None,
            pin_memory=pin_memory,
        )

    # With fewer processes than configured, each accumulates more micro-steps, so that a step holds
    # the same clips.
    plan = BatchPlan(
        training.batch_size,
        max(1, training.num_processes * training.accumulate // world.size),
        world.size,
        world.rank,
        training.seed,
        True,
        training.max_positions,
    )
    if not dataset.val:
        return batches(dataset.train, plan), None
    # Rounded up; the last micro-batch may be smaller.
    num_micro_steps = -(-len(dataset.val) // (training.batch_size * world.size))
    val_plan = replace(plan, accumulate=num_micro_steps, shuffle=False)
    return batches(dataset.train, plan), batches(dataset.val, val_plan)


def loader_workers(wanted: int | None) -> int:
    """Return how many processes compute features; by default all cores but one, at most 8."""
    if wanted is not None:
        return wanted
    # Chosen by hand. The affinity counts the cores that this process may use, which in a container
    # can be fewer than the machine has; Windows and macOS do not offer it.
    return (
        min(8, max(0, len(os.sched_getaffinity(0)) - 1)) if hasattr(os, "sched_getaffinity") else 2
    )


def _survey_key(
    family: ModelFamily,
    options: object,
    base: Path | None,
    clips: list[Clip],
    names: dict[str, str],
) -> str:
    """Hash everything a survey depends on: options, base, and each clip with its features' name."""
    digest = sha256(json.dumps([family.name, to_values(options)]).encode())
    for path in _small_files(base) + _named_files(options):
        digest.update(content_hash(path).encode())
    for clip in sorted(clips, key=lambda clip: clip.id):
        # The path of the audio too, because a survey stores the paths of reference recordings.
        about = [clip.id, clip.text, clip.speaker, clip.language, clip.split, clip.audio_path]
        digest.update(json.dumps([*about, names[clip.id]]).encode())
    return digest.hexdigest()


def _small_files(base: Path | None) -> list[Path]:
    """Return the files of a base that hold symbols, sizes and settings; larger ones are weights."""
    if base is None:
        return []
    files = sorted(base.iterdir()) if base.is_dir() else sorted(base.parent.glob("*.json"))
    return [path for path in files if path.is_file() and path.stat().st_size < _SMALL_FILE]


def _named_files(options: object) -> list[Path]:
    """Return the files that options name, and the .json descriptions beside them."""
    named = [Path(getattr(options, i.name)) for i in describe(type(options)) if i.is_path]
    found = [path for path in named if path.is_file()]
    beside = [path.with_suffix(".json") for path in found]
    return found + [path for path in beside if path.is_file()]


def _reporter(folder: Path, emit: Emit) -> Callable[[str, int, int], None]:
    def report(phase: str, done: int, total: int) -> None:
        # Features of hours of speech take minutes; Stop must not wait for them.
        if (folder / "control" / "stop").exists():
            raise StopRequested(f"Stopped while the run was being prepared ({phase.lower()}).")
        stride = max(1, total // 100)  # about 100 events, however large the corpus is
        if done % stride == 0 or done == total:
            emit(PhaseChanged(phase, done, total))

    return report


def _report_unusable(emit: Emit, clips: list[Clip], unusable: dict[str, str]) -> None:
    by_id = {clip.id: clip for clip in clips}
    # The first 20 are enough to see a pattern; the ledger lists all of them.
    for clip_id, reason in list(unusable.items())[:20]:
        clip = by_id[clip_id]
        where = f"Line {clip.line} of {Path(clip.source).name}"
        emit(Notice("warning", f"{where} is left out: {reason}"))  # the reason says what to do
    if len(unusable) > 20:
        emit(Notice("warning", f"{len(unusable) - 20} more clips are left out."))


def _nothing_left(clips: list[Clip], unusable: dict[str, str]) -> str:
    reason = next(iter(unusable.values()), "All of them are in the eval split.")
    return f"None of the {len(clips)} clips can be used for training. The first reason: {reason}"

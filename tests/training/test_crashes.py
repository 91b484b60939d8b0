"""Crashes before every operation of saving, pruning, creating runs and importing; damaged files."""

import os
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.clips import write_tone
from tests.helpers.disk import before_each_operation
from tests.helpers.toy import OPTIMIZERS, make_setup
from trainer.checkpoints.checkpoint import (
    clean_leftovers,
    newest_checkpoint,
    prune,
    quarantine_damaged,
    restore_checkpoint,
    save_checkpoint,
    verify_checkpoint,
)
from trainer.core.errors import CheckpointError, RunExists
from trainer.core.events import Event, EventLog
from trainer.core.run_config import DataConfig, RunConfig
from trainer.core.train_state import TrainState
from trainer.core.types import Clip, Features
from trainer.data.features.cache import FeatureCache
from trainer.data.features.dataset import choose_clips
from trainer.runs.run import Run
from trainer.training.loop import train, train_step


def _moments(folder: Path, album: Path, deed: Callable[[], object]) -> list[Path]:
    """Return what a folder held before each operation of a deed: where a kill would leave it."""
    moments: list[Path] = []
    is_looking = [False]

    def look(name: str, arguments: tuple[Any, ...]) -> None:
        if is_looking[0]:
            return  # copying makes folders too
        is_looking[0] = True
        moments.append(album / f"{len(moments):03}-{name}")
        if folder.exists():
            shutil.copytree(folder, moments[-1])
        is_looking[0] = False

    with before_each_operation(look):
        deed()
    return moments


def _digest(train_state: TrainState) -> list[bytes]:
    values = [*train_state.model.state_dict().values(), *(train_state.average or {}).values()]
    return [value.detach().numpy().tobytes() for value in values]


def _train_to_the_end(folder: Path, **options: Any) -> TrainState:
    """Go on from whatever a folder holds, as the trainer does at its start."""
    train_state = make_setup(folder, **options)
    clean_leftovers(folder / "checkpoints")
    newest, _ = quarantine_damaged(folder / "checkpoints")
    if newest is not None:
        train_state.first_step = restore_checkpoint(train_state, newest) + 1
    train(train_state, lambda event: None)
    return train_state


@pytest.mark.fault("A1", "A2", "B8")
def test_a_kill_before_any_operation_of_saving_and_pruning_costs_no_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"ema_decay": 0.9, "steps": 12, "keep_last": 1}
    whole: list[TrainState] = []

    moments = _moments(
        tmp_path / "run",
        tmp_path / "album",
        lambda: whole.append(_train_to_the_end(tmp_path / "run", **options)),
    )
    states = [newest_checkpoint(moment / "checkpoints") for moment in moments]
    recovered = [_digest(_train_to_the_end(moment, **options)) for moment in moments]

    assert len(moments) > 25
    assert [complaints for _, complaints in states if complaints] == []
    expected = _digest(whole[0])
    assert [
        moment.name for moment, d in zip(moments, recovered, strict=True) if d != expected
    ] == []
    # Once one was published, there is one ever after.
    first = next(at for at, (folder, _) in enumerate(states) if folder is not None)
    assert all(folder is not None for folder, _ in states[first:])
    for moment in moments:
        assert not list((moment / "checkpoints").glob(".*")), moment


@pytest.mark.fault("A2")
def test_a_run_whose_creation_was_interrupted_can_be_created_again(tmp_path: Path) -> None:
    config = RunConfig(data=DataConfig(train_csv="a.csv"))
    folder = tmp_path / "runs" / "mine"

    moments = _moments(folder, tmp_path / "album", lambda: Run.create(folder, config))
    half_made = [moment for moment in moments if not (moment / "run.json").exists()]
    for moment in half_made:
        if moment.exists():
            with pytest.raises(RunExists):
                Run.create(moment, config)
            long_ago = time.time() - 3600
            os.utime(moment, (long_ago, long_ago))
        Run.create(moment, config)

    assert len(moments) >= 6
    assert all(Run.open(moment).current_config == config for moment in moments)
    assert all(Run.open(moment).status().state == "created" for moment in moments)


def test_a_folder_with_anything_of_ones_own_never_becomes_a_run(tmp_path: Path) -> None:
    config = RunConfig(data=DataConfig(train_csv="a.csv"))
    for name in ("events.jsonl", "notes.txt"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("mine")
        os.utime(folder, (0, 0))

        with pytest.raises(RunExists):
            Run.create(folder, config)


class _Doubling:
    """A featurizer that tells how often it computes."""

    fingerprint = "doubling"

    def __init__(self) -> None:
        self.computed = 0

    def __call__(self, clip: Clip) -> Features:
        self.computed += 1
        return {"values": np.arange(40, dtype=np.float32) * clip.line}


@pytest.mark.fault("A2")
def test_an_import_interrupted_at_any_operation_is_done_again_to_the_same_result(
    tmp_path: Path,
) -> None:
    lines = []
    for number in range(3):
        write_tone(tmp_path / f"{number}.wav", 0.5 + 0.1 * number)
        lines.append(f"{number}.wav|text number {number}|ann")
    (tmp_path / "train.csv").write_text("\n".join(["audio_file|text|speaker", *lines]) + "\n")
    config = RunConfig(data=DataConfig(train_csv=str(tmp_path / "train.csv"), eval_fraction=0.0))

    def prepare(folder: Path) -> tuple[list[Clip], dict[str, list[float]]]:
        (folder / "control").mkdir(parents=True, exist_ok=True)
        clips = choose_clips(folder, config, lambda event: None)
        cache = FeatureCache(folder / "cache")
        features, _ = cache.collect(clips, _Doubling(), workers=0, progress=lambda *_: None)
        return clips, {name: found["values"].tolist() for name, found in features.items()}

    moments = _moments(tmp_path / "run", tmp_path / "album", lambda: prepare(tmp_path / "run"))
    expected = prepare(tmp_path / "whole")

    assert len(moments) >= 6
    assert [prepare(moment) for moment in moments] == [expected] * len(moments)


@pytest.mark.fault("F3", "A1")
def test_a_log_cut_at_any_byte_keeps_every_whole_line_and_goes_on(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    log.path.touch()
    train_state = make_setup(tmp_path / "run", steps=2)
    train(train_state, log.append)
    content = log.path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]

    for cut in range(0, len(content), 7):
        torn = EventLog(tmp_path / "torn.jsonl")
        torn.path.write_bytes(content[:cut])
        torn.append(Event())
        kept = [logged.event for logged in torn.follow()]
        # A line that lacks only its end is whole once the next one begins.
        assert len(kept) == sum(end - 1 <= cut for end in ends), cut


@pytest.mark.fault("B16")
@pytest.mark.parametrize("seed", range(5))
def test_retention_never_drops_the_best_or_the_newest(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    best = 0
    for step in range(1, 25):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        is_best = rng.random() < 0.3
        best = step if is_best else best
        (folder / "manifest.json").write_text(f'{{"best": {str(is_best).lower()}}}')
        keep_last = rng.randint(1, 4)

        prune(tmp_path, keep_last=keep_last)

        kept = {int(path.name[-8:]) for path in tmp_path.glob("step-*")}
        assert {step, best} - {0} <= kept
        assert len(kept) <= keep_last + 1


# Damage


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with the checkpoints of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("published")
    train_state = make_setup(folder, ema_decay=0.9)
    for step in (1, 2):
        train_step(train_state, step)
        save_checkpoint(train_state, step, best=False)
    return folder


_FILES = ["model.safetensors", "state.pt", "config.json", "manifest.json"]


@pytest.mark.fault("B5", "B7")
@pytest.mark.parametrize("name", _FILES)
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.9, 1.0])
def test_a_file_cut_anywhere_is_noticed_and_the_checkpoint_before_is_used(
    tmp_path: Path, published: Path, name: str, share: float
) -> None:
    shutil.copytree(published, tmp_path / "run")
    damaged = tmp_path / "run" / "checkpoints" / "step-00000002" / name
    content = damaged.read_bytes()
    damaged.write_bytes(content[: min(int(share * len(content)), len(content) - 1)])

    newest, complaints = newest_checkpoint(tmp_path / "run" / "checkpoints")

    assert newest == tmp_path / "run" / "checkpoints" / "step-00000001"
    assert len(complaints) == 1
    assert "The previous one is used instead" in complaints[0]


@pytest.mark.fault("B6")
@pytest.mark.parametrize("name", _FILES)
def test_no_flipped_bit_goes_unnoticed(tmp_path: Path, published: Path, name: str) -> None:
    folder = tmp_path / "step-00000002"
    shutil.copytree(published / "checkpoints" / "step-00000002", folder)
    path, rng = folder / name, random.Random(name)
    whole, manifest = path.read_bytes(), verify_checkpoint(folder)
    unnoticed = []

    for _ in range(60):
        bit = rng.randrange(8 * len(whole))
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            # White space between the values of a manifest means nothing.
            if verify_checkpoint(folder) != manifest:
                unnoticed.append(bit)
        except CheckpointError:
            continue

    assert unnoticed == []


# What a checkpoint must hold


def _trained_on(
    folder: Path, optimizer: str, change: Callable[[dict[str, Any]], None]
) -> list[bytes]:
    """Train 4 steps, save, change what was saved, resume from it and train 12 steps more."""
    options: dict[str, Any] = {"optimizer": optimizer, "ema_decay": 0.9, "num_micro_steps": 2}
    train_state = make_setup(folder, steps=30, **options)
    for step in range(1, 5):
        train_step(train_state, step)
    saved = folder / save_checkpoint(train_state, 4, best=False).path
    state = torch.load(saved / "state.pt", weights_only=True)
    change(state)
    torch.save(state, saved / "state.pt")
    resumed = make_setup(folder, steps=30, **options)
    restore_checkpoint(resumed, saved)
    for step in range(5, 17):
        train_step(resumed, step)
    return _digest(resumed)


def _forget(state: dict[str, Any], name: str) -> None:
    """Set one kind of an optimizer's state to what it is at the start."""
    for own in state["optimizer"]["state"].values():
        if name in own:
            own[name] = torch.zeros_like(own[name]) if torch.is_tensor(own[name]) else 0


# Their groups count the steps; the counter of a weight serves other rules of the same base.
_COUNT_IN_GROUPS = {
    "lion", "prodigy", "prodigy_reference", "prodigy_schedule_free", "schedule_free_adamw",
}  # fmt: skip


@pytest.mark.fault("A1")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_dropping_anything_that_is_saved_changes_what_follows(
    tmp_path: Path, optimizer: str
) -> None:
    train_state = make_setup(tmp_path / "names", optimizer=optimizer)
    train_step(train_state, 1)
    names = {name for own in train_state.optimizer.state_dict()["state"].values() for name in own}
    whole = _trained_on(tmp_path / "whole", optimizer, lambda state: None)
    again = _trained_on(tmp_path / "again", optimizer, lambda state: None)

    without: dict[str, list[bytes]] = {
        "weights": _trained_on(tmp_path / "w", optimizer, lambda s: s["training_weights"].clear()),
        "average": _trained_on(tmp_path / "a", optimizer, lambda s: s["average"].clear()),
    }
    for name in names:
        without[name] = _trained_on(
            tmp_path / name, optimizer, lambda state, name=name: _forget(state, name)
        )

    assert again == whole
    unchanged = {name for name, digest in without.items() if digest == whole}
    assert unchanged <= ({"step"} if optimizer in _COUNT_IN_GROUPS else set())

"""Checkpoints: published whole or not at all, damage is noticed, the best one is kept."""

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

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
from trainer.core.errors import CheckpointError
from trainer.state.weights import evaluation_weights
from trainer.training.loop import train_step


def test_a_checkpoint_holds_weights_settings_state_and_a_manifest(tmp_path: Path) -> None:
    saved = save_checkpoint(make_setup(tmp_path), 3, best=True)

    names = {path.name for path in (tmp_path / saved.path).iterdir()}

    assert names == {"model.safetensors", "config.json", "state.pt", "manifest.json"}


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "config.json"])
@pytest.mark.fault("B6")
def test_one_flipped_bit_is_noticed_and_the_checkpoint_before_is_used(
    tmp_path: Path, name: str
) -> None:
    state = make_setup(tmp_path)
    older = tmp_path / save_checkpoint(state, 1, best=False).path
    newer = tmp_path / save_checkpoint(state, 2, best=False).path
    content = bytearray((newer / name).read_bytes())
    content[len(content) // 2] ^= 4
    (newer / name).write_bytes(content)

    folder, complaints = newest_checkpoint(tmp_path / "checkpoints")

    assert folder == older
    assert len(complaints) == 1
    assert name in complaints[0]


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
@pytest.mark.fault("B5")
def test_truncated_files_are_noticed(tmp_path: Path, share: float) -> None:
    folder = tmp_path / save_checkpoint(make_setup(tmp_path), 1, best=False).path
    path = folder / "state.pt"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])

    with pytest.raises(CheckpointError, match="bytes long"):
        verify_checkpoint(folder)


@pytest.mark.fault("A15")
def test_a_checkpoint_of_a_newer_format_is_refused_in_a_sentence(tmp_path: Path) -> None:
    folder = tmp_path / save_checkpoint(make_setup(tmp_path), 1, best=False).path
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))

    with pytest.raises(CheckpointError, match="Update Timbre"):
        verify_checkpoint(folder)


@pytest.mark.fault("A4", "B8")
def test_a_failing_disk_leaves_the_old_checkpoint_and_no_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_setup(tmp_path)
    older = tmp_path / save_checkpoint(state, 1, best=False).path
    real_fsync = os.fsync
    calls: list[int] = []

    def fail_at_third(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(5, "Input/output error")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_at_third)
    with pytest.raises(OSError, match="Input/output"):
        save_checkpoint(state, 2, best=False)

    assert newest_checkpoint(tmp_path / "checkpoints") == (older, [])
    clean_leftovers(tmp_path / "checkpoints")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [older.name]


@pytest.mark.fault("A2")
def test_saving_at_every_instant_of_a_crash_leaves_a_usable_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each fsync and rename in turn is the moment of the crash."""
    state = make_setup(tmp_path / "live")
    save_checkpoint(state, 1, best=False)
    moments: list[str] = []
    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        _photograph(tmp_path, moments)
        real_fsync(descriptor)

    def replace(path: Path, target: Path) -> Path:
        _photograph(tmp_path, moments)
        return real_replace(path, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    save_checkpoint(state, 2, best=False)
    monkeypatch.undo()

    found = [newest_checkpoint(tmp_path / moment) for moment in moments]
    assert len(moments) >= 6
    assert all(folder is not None and complaints == [] for folder, complaints in found)


def _photograph(tmp_path: Path, moments: list[str]) -> None:
    name = f"moment-{len(moments)}"
    shutil.copytree(tmp_path / "live" / "checkpoints", tmp_path / name)
    moments.append(name)


@pytest.mark.fault("B16")
def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    state = make_setup(tmp_path, keep_last=2)
    for step in range(1, 7):
        save_checkpoint(state, step, best=step in (1, 2))

    kept = sorted(path.name[-1] for path in (tmp_path / "checkpoints").iterdir())
    prune(tmp_path / "checkpoints", keep_last=1)

    assert kept == ["2", "5", "6"]
    assert sorted(path.name[-1] for path in (tmp_path / "checkpoints").iterdir()) == ["2", "6"]


@pytest.mark.parametrize("optimizer", ["schedule_free_adamw", "adamw"])
def test_the_saved_weights_are_those_that_evaluation_uses(tmp_path: Path, optimizer: str) -> None:
    state = make_setup(
        tmp_path, optimizer=optimizer, ema_decay=0.9 if optimizer == "adamw" else 0.0
    )
    for step in range(1, 6):
        train_step(state, step)

    saved = load_file(tmp_path / save_checkpoint(state, 5, best=False).path / "model.safetensors")
    with evaluation_weights(state):
        judged = {name: value.clone() for name, value in state.model.named_parameters()}

    for name, value in judged.items():
        assert torch.equal(saved[name], value), name
        assert not torch.equal(value, dict(state.model.named_parameters())[name]), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_evaluating_between_steps_changes_no_bit_of_training(
    tmp_path: Path, optimizer: str
) -> None:
    calm = make_setup(tmp_path / "calm", optimizer=optimizer, ema_decay=0.9)
    busy = make_setup(tmp_path / "busy", optimizer=optimizer, ema_decay=0.9)

    for state in (calm, busy):
        torch.manual_seed(1)
        for step in range(1, 6):
            train_step(state, step)
            if state is busy:
                with evaluation_weights(state):
                    pass

    for name, value in calm.model.state_dict().items():
        assert torch.equal(value, busy.model.state_dict()[name]), name


def test_restoring_what_was_left_out_would_be_noticed(tmp_path: Path) -> None:
    """The test of the tests: forgetting the optimizer's state changes what follows."""
    state = make_setup(tmp_path)
    for step in range(1, 4):
        train_step(state, step)
    folder = tmp_path / save_checkpoint(state, 3, best=False).path
    forgetful = make_setup(tmp_path)
    restore_checkpoint(forgetful, folder)
    forgetful.optimizer.state.clear()

    for each in (state, forgetful):
        torch.manual_seed(1)
        train_step(each, 4)

    assert not torch.equal(state.model.inner.weight, forgetful.model.inner.weight)  # type: ignore[arg-type]


@pytest.mark.fault("B5", "B16")
def test_a_damaged_newer_checkpoint_does_not_push_out_good_ones(tmp_path: Path) -> None:
    state = make_setup(tmp_path, keep_last=1)
    save_checkpoint(state, 2, best=False)
    damaged = tmp_path / save_checkpoint(state, 9, best=False).path
    (damaged / "state.pt").write_bytes(b"")

    newest, complaints = quarantine_damaged(tmp_path / "checkpoints")
    saved = tmp_path / save_checkpoint(state, 3, best=False).path

    assert (newest, len(complaints)) == (None, 1)
    assert newest_checkpoint(tmp_path / "checkpoints") == (saved, [])
    assert list((tmp_path / "checkpoints").glob("damaged-step-00000009-*"))

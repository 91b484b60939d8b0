"""Checkpoints: saved atomically, verified by hash, loaded newest first, pruned after publishing.

A checkpoint folder holds `model.safetensors` and `config.json` (the family's export: the weights
a person would take away), `state.pt` (all that resumes the run) and `manifest.json` (hashes).
It appears by one rename after every file was forced to the disk; nothing half-written has its name.
"""

import hashlib
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from trainer.averaging import start_average
from trainer.durable import sync
from trainer.errors import CheckpointError
from trainer.evaluate import has_other_weights, weights_for_evaluation
from trainer.events import CheckpointSaved
from trainer.scope import describe_scope
from trainer.setup import Setup
from trainer.staging import Staging

FORMAT = 1


@dataclass(frozen=True)
class Snapshot:
    """What a checkpoint will hold, copied to the host: training may go on while it is written."""

    step: int
    best: bool
    metrics: dict[str, float]
    scope: dict[str, Any]
    weights: dict[str, Tensor]
    state: dict[str, Any]
    ready: "torch.cuda.Event | None"

    @property
    def size_bytes(self) -> int:
        """About how many bytes it takes on the disk, files that are only linked left out."""
        return _count_bytes(self.weights) + _count_bytes(self.state)


def save_checkpoint(setup: Setup, step: int, *, best: bool) -> CheckpointSaved:
    """Write and publish a checkpoint at once; `CheckpointWriter` does it beside training."""
    snapshot = take_snapshot(setup, step, best=best, staging=Staging(setup.device))
    return write_snapshot(setup, snapshot)


def take_snapshot(setup: Setup, step: int, *, best: bool, staging: Staging) -> Snapshot:
    """Copy what the checkpoint of a step holds; the only part that training waits for."""
    with weights_for_evaluation(setup):
        weights = staging.copy(setup.model.state_dict(), "weights")
    with setup.in_full():
        state = staging.copy(_resume_state(setup, step), "state")
    validation = setup.progress.get("validation", {})
    metrics = validation if validation.get("step") == step else {}
    scope = describe_scope(setup)
    return Snapshot(step, best, dict(metrics), scope, weights, state, staging.ready())


def write_snapshot(setup: Setup, snapshot: Snapshot) -> CheckpointSaved:
    """Write and publish a snapshot, then drop older ones beyond `keep_last` and the best.

    It may run beside training: of the model it uses nothing that training changes.

    Raises:
        OSError, RuntimeError, SafetensorError: the disk is full or fails; what was there is whole.
    """
    started = time.monotonic()
    step, parent = snapshot.step, setup.folder / "checkpoints"
    if snapshot.ready is not None:
        snapshot.ready.synchronize()
    partial = parent / f".partial-{step:08d}-{os.getpid()}"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir()
        setup.family.export(setup.model, setup.corpus.facts, partial, snapshot.weights)
        torch.save(snapshot.state, partial / "state.pt")
        _publish(partial, parent / f"step-{step:08d}", snapshot)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    with suppress(OSError):
        prune(parent, keep_last=setup.config.training.keep_last)
    folder = parent / f"step-{step:08d}"
    size = sum(file.stat().st_size for file in folder.iterdir())
    path = str(folder.relative_to(setup.folder))
    return CheckpointSaved(step, path, snapshot.best, size, time.monotonic() - started)


def newest_checkpoint(parent: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint folder that verifies, and a sentence for each damaged one."""
    complaints = []
    for folder in sorted(parent.glob("step-*"), reverse=True):
        try:
            verify_checkpoint(folder)
        except CheckpointError as error:
            complaints.append(str(error))
        else:
            return folder, complaints
    return None, complaints


def newest_step(parent: Path) -> int | None:
    """Return the step of the newest published checkpoint, without verifying it."""
    folders = sorted(parent.glob("step-*"))
    return int(folders[-1].name.removeprefix("step-")) if folders else None


def set_damaged_aside(parent: Path) -> tuple[Path | None, list[str]]:
    """As `newest_checkpoint`, and rename the damaged ones after it; only the run's owner may call.

    Left in place, their higher steps would count as the newest ones and good ones be pruned.
    """
    newest, complaints = newest_checkpoint(parent)
    for folder in sorted(parent.glob("step-*"), reverse=True)[: len(complaints)]:
        folder.rename(parent / f"damaged-{folder.name}-{time.time_ns()}")
    return newest, complaints


def verify_checkpoint(folder: Path) -> dict[str, Any]:
    """Check every file of a checkpoint against its manifest and return the manifest.

    Raises:
        CheckpointError: the manifest is absent or unreadable, or a file is not as it was written.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        files, made_by = manifest["files"], int(manifest["format"])
        is_whole = "scope" not in manifest or manifest.get("sha256") == _hash_manifest(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"The checkpoint {folder.name} has no readable manifest, so it was not written to its "
            "end. The one before it is used."
        ) from None
    if made_by > FORMAT:
        raise CheckpointError(
            f"The checkpoint {folder.name} has format {made_by}; this Timbre reads up to {FORMAT}. "
            "Update Timbre to continue from it."
        )
    if not is_whole:
        raise CheckpointError(
            f"The checkpoint {folder.name} is damaged: its manifest changed after it was written. "
            "The one before it is used."
        )
    for name, facts in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != facts["size"]:
            raise CheckpointError(
                f"The checkpoint {folder.name} is damaged: {name} is not {facts['size']} bytes "
                "long. The one before it is used."
            )
        if _hash_file(path) != facts["sha256"]:
            raise CheckpointError(
                f"The checkpoint {folder.name} is damaged: the contents of {name} changed after it "
                "was written. The one before it is used."
            )
    return manifest


def saved_scope(folder: Path) -> dict[str, Any]:
    """Return the scope (see `scope`) that a checkpoint was saved in; {} of one that notes none."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest.get("scope", {})


def restore_checkpoint(setup: Setup, folder: Path, *, fresh_optimizer: bool = False) -> int:
    """Load weights, optimizer and progress into the setup; return the step done.

    Random states are not stored: every step seeds its own (`loop.seed_step`). With
    `fresh_optimizer` the optimizer begins as at the start of a run.
    """
    state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    weights = load_file(folder / "model.safetensors")
    # Schedule-Free trains at a point that means nothing to others; its average does.
    was_averaging = "train_mode" in state["optimizer"]["param_groups"][0]
    if setup.has_parts or not (fresh_optimizer and was_averaging):
        weights |= state["training_weights"]
    with setup.in_full():
        setup.model.load_state_dict(weights, strict=True)
        if not fresh_optimizer:
            setup.optimizer.load_state_dict(state["optimizer"])
        elif setup.build_optimizer is not None:
            # Some optimizers copy the weights when they are built.
            setup.optimizer = setup.build_optimizer(setup.model)
    if state["scaler"]:
        setup.precision.scaler.load_state_dict(state["scaler"])
    if setup.average is not None:
        setup.average = start_average(setup.model)
        for name, value in state["average"].items():
            setup.average[name].copy_(value)
    setup.progress = state["progress"]
    return int(state["step"])


def prune(parent: Path, *, keep_last: int) -> None:
    """Delete all published checkpoints but the newest ones and the newest best one."""
    folders = sorted(parent.glob("step-*"))
    best = [folder for folder in folders if _is_best(folder)][-1:]
    for folder in folders[: max(0, len(folders) - keep_last)]:
        if folder not in best:
            trash = parent / f".trash-{folder.name}-{os.getpid()}"
            folder.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)


def clean_leftovers(parent: Path) -> None:
    """Delete what interrupted saves and prunes left; only the owner of the run may call this."""
    for pattern in (".partial-*", ".trash-*"):
        for folder in parent.glob(pattern):
            shutil.rmtree(folder, ignore_errors=True)


def _resume_state(setup: Setup, step: int) -> dict[str, Any]:
    differs = has_other_weights(setup)
    parameters = {name: value.detach() for name, value in setup.model.named_parameters()}
    return {
        "step": step,
        "training_weights": parameters if differs else {},
        "optimizer": setup.optimizer.state_dict(),
        "scaler": setup.precision.scaler.state_dict(),
        "average": setup.average or {},
        "progress": setup.progress,
        "versions": {"format": FORMAT, "torch": str(torch.__version__)},
    }


def _publish(partial: Path, final: Path, snapshot: Snapshot) -> None:
    files = {}
    for path in sorted(partial.iterdir()):
        sync(path)
        files[path.name] = {"size": path.stat().st_size, "sha256": _hash_file(path)}
    facts = {"step": snapshot.step, "best": snapshot.best, "metrics": snapshot.metrics}
    manifest = {"format": FORMAT} | facts | {"scope": snapshot.scope, "files": files}
    manifest["sha256"] = _hash_manifest(manifest)
    manifest_path = partial / "manifest.json"
    manifest_path.write_text(json.dumps(manifest, indent=2), encoding="utf-8")
    sync(manifest_path)
    sync(partial)
    if final.exists():
        trash = final.parent / f".trash-{final.name}-{os.getpid()}"
        final.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)
    partial.rename(final)
    sync(final.parent)


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_manifest(manifest: dict[str, Any]) -> str:
    """Hash all of a manifest but the hash itself."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _count_bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(map(_count_bytes, value.values()))
    return sum(map(_count_bytes, value)) if isinstance(value, list | tuple) else 0


def _is_best(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["best"])
    except (OSError, ValueError, KeyError):
        return False

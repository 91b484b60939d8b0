"""Save, verify, load and prune checkpoints.

A checkpoint folder holds `model.safetensors` and `config.json` (the family's export), `state.pt`
(everything else a resume needs) and `manifest.json` (sizes and hashes). Every file is synced to
disk before one rename publishes the folder, so a published checkpoint is never half written.
"""

import hashlib
import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from trainer.checkpoints.compatibility import describe_scope
from trainer.checkpoints.staging import Staging
from trainer.core.atomic_io import discard, is_leftover, replacing
from trainer.core.errors import CheckpointError
from trainer.core.events import CheckpointSaved
from trainer.core.options import Values
from trainer.core.run_config import WRITTEN_BY
from trainer.core.train_state import TrainState
from trainer.core.version import __version__
from trainer.optimizers._core.build import rebuild_optimizer
from trainer.state.ema import start_average
from trainer.state.weights import evaluation_weights, fp32_weights, has_other_weights

FORMAT = 1  # raise it when an older Timbre could not read what this one writes


@dataclass(frozen=True)
class Snapshot:
    """The contents of a checkpoint, copied to host memory so that training can continue."""

    step: int
    best: bool
    metrics: dict[str, float]
    scope: Values
    weights: dict[str, Tensor]
    state: dict[str, object]
    ready: "torch.cuda.Event | None"

    @property
    def size_bytes(self) -> int:
        """About how many bytes it takes on disk, without files that are hard links."""
        return _count_bytes(self.weights) + _count_bytes(self.state)


def save_checkpoint(train_state: TrainState, step: int, *, best: bool) -> CheckpointSaved:
    """Write and publish a checkpoint now; `CheckpointWriter` does so in the background."""
    snapshot = take_snapshot(train_state, step, best=best, staging=Staging(train_state.device))
    return write_snapshot(train_state, snapshot)


def take_snapshot(train_state: TrainState, step: int, *, best: bool, staging: Staging) -> Snapshot:
    """Copy the contents of a step's checkpoint; the only part that training waits for."""
    with evaluation_weights(train_state):
        weights = staging.copy(train_state.model.state_dict(), "weights")
    with fp32_weights(train_state):
        state = staging.copy(_resume_state(train_state, step), "state")
    # Metrics of an earlier validation do not describe these weights.
    validation = train_state.progress.get("validation", {})
    metrics = validation if validation.get("step") == step else {}
    scope = describe_scope(train_state)
    return Snapshot(step, best, dict(metrics), scope, weights, state, staging.ready())


def write_snapshot(train_state: TrainState, snapshot: Snapshot) -> CheckpointSaved:
    """Write and publish a snapshot, then delete older ones beyond `keep_last` and the best.

    It may run in a thread beside training: it reads nothing of the model that training changes.

    Raises:
        OSError, RuntimeError, SafetensorError: the disk is full or failed; older checkpoints are
            unharmed.
    """
    started = time.monotonic()
    step, parent = snapshot.step, train_state.folder / "checkpoints"
    if snapshot.ready is not None:
        snapshot.ready.synchronize()  # the copies from the GPU were queued, not waited for
    folder = parent / f"step-{step:08d}"
    with replacing(folder) as partial:
        partial.mkdir()
        train_state.family.export(
            train_state.model, train_state.corpus.facts, partial, snapshot.weights
        )
        torch.save(snapshot.state, partial / "state.pt")
        _write_manifest(partial, snapshot)
    # The new checkpoint is safe by now; a folder that cannot be deleted must not fail the save.
    with suppress(OSError):
        prune(parent, keep_last=train_state.config.training.keep_last)
    size = sum(file.stat().st_size for file in folder.iterdir())
    path = str(folder.relative_to(train_state.folder))
    return CheckpointSaved(step, path, snapshot.best, size, time.monotonic() - started)


def newest_checkpoint(parent: Path) -> tuple[Path | None, list[str]]:
    """Return the newest intact checkpoint folder, and a sentence for each damaged newer one."""
    complaints = []
    # Steps are zero-padded to eight digits, so names sort by step.
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


def quarantine_damaged(parent: Path) -> tuple[Path | None, list[str]]:
    """Like `newest_checkpoint`, and rename the damaged ones; only the run's owner may call this.

    Left in place, their higher steps would count as the newest, and pruning would delete intact
    checkpoints instead.
    """
    newest, complaints = newest_checkpoint(parent)
    for folder in sorted(parent.glob("step-*"), reverse=True)[: len(complaints)]:
        folder.rename(parent / f"damaged-{folder.name}-{time.time_ns()}")
    return newest, complaints


def verify_checkpoint(folder: Path) -> Values:
    """Check every file of a checkpoint against its manifest and return the manifest.

    Raises:
        CheckpointError: the manifest is missing or unreadable, or a file changed after writing.
    """
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        files, made_by = manifest["files"], int(manifest["format"])
        # Manifests without a scope are older than their own hash, and have none to compare.
        is_whole = "scope" not in manifest or manifest.get("sha256") == _hash_manifest(manifest)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"The checkpoint {folder.name} is incomplete: its manifest is missing or unreadable. "
            "The previous one is used instead."
        ) from None
    if made_by > FORMAT:
        raise CheckpointError(
            f"The checkpoint {folder.name} has format {made_by}; this version of Timbre reads "
            f"formats up to {FORMAT}. Update Timbre to continue from it."
        )
    if not is_whole:
        raise CheckpointError(
            f"The checkpoint {folder.name} is damaged: its manifest changed after it was written. "
            "The previous one is used instead."
        )
    for name, facts in files.items():
        path = folder / name
        # The size first: it finds most damage without reading gigabytes.
        if not path.is_file() or path.stat().st_size != facts["size"]:
            raise CheckpointError(
                f"The checkpoint {folder.name} is damaged: {name} is missing or not "
                f"{facts['size']} bytes long. The previous one is used instead."
            )
        if _hash_file(path) != facts["sha256"]:
            raise CheckpointError(
                f"The checkpoint {folder.name} is damaged: the contents of {name} changed after it "
                "was written. The previous one is used instead."
            )
    return manifest


def saved_scope(folder: Path) -> Values:
    """Return the circumstances in which a checkpoint was saved (see `describe_scope`).

    Older checkpoints do not record them and return {}.
    """
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest.get("scope", {})


def restore_checkpoint(
    train_state: TrainState, folder: Path, *, fresh_optimizer: bool = False
) -> int:
    """Load weights, optimizer and progress into the train state; return the last finished step.

    Random states are not stored, because every step seeds its own generators. With
    `fresh_optimizer` the optimizer starts without state, as at the start of a run.
    """
    # weights_only: a checkpoint may come from elsewhere, and a pickle could run code.
    state = torch.load(folder / "state.pt", map_location="cpu", weights_only=True)
    weights = load_file(folder / "model.safetensors")
    # Only Schedule-Free stores "train_mode". Its training weights are an interpolated point that
    # another optimizer cannot continue from; the exported average can be.
    was_averaging = "train_mode" in state["optimizer"]["param_groups"][0]
    if train_state.lora is not None or not (fresh_optimizer and was_averaging):
        weights |= state["training_weights"]
    with fp32_weights(train_state):
        train_state.model.load_state_dict(weights, strict=True)
        if not fresh_optimizer:
            train_state.optimizer.load_state_dict(state["optimizer"])
        else:
            # Some optimizers copy the weights when they are built, so build one after loading.
            train_state.optimizer = rebuild_optimizer(train_state)
    if state["scaler"]:
        train_state.precision.scaler.load_state_dict(state["scaler"])
    if train_state.average is not None:
        # What the checkpoint lacks, because EMA was turned on since, starts from the weights.
        train_state.average = start_average(train_state.model)
        for name, value in state["average"].items():
            train_state.average[name].copy_(value)
    train_state.progress = state["progress"]
    return int(state["step"])


def prune(parent: Path, *, keep_last: int) -> None:
    """Delete all published checkpoints except the `keep_last` newest and the best one."""
    folders = sorted(parent.glob("step-*"))
    best = [folder for folder in folders if _is_best(folder)][-1:]
    for folder in folders[: max(0, len(folders) - keep_last)]:
        if folder not in best:
            discard(folder)


def clean_leftovers(parent: Path) -> None:
    """Delete what interrupted saves and deletions left; only the run's owner may call this."""
    for folder in parent.glob(".*"):
        # Earlier versions named what they were writing .partial-*.
        if is_leftover(folder) or folder.name.startswith((".partial-", ".trash-")):
            shutil.rmtree(folder, ignore_errors=True)


def _resume_state(train_state: TrainState, step: int) -> dict[str, object]:
    # Usually the exported weights are the training weights; storing them twice would double a save.
    differs = has_other_weights(train_state)
    parameters = {name: value.detach() for name, value in train_state.model.named_parameters()}
    return {
        "step": step,
        "training_weights": parameters if differs else {},
        "optimizer": train_state.optimizer.state_dict(),
        "scaler": train_state.precision.scaler.state_dict(),
        "average": train_state.average or {},
        "progress": train_state.progress,
        "versions": {"format": FORMAT, "torch": str(torch.__version__)},
    }


def _write_manifest(folder: Path, snapshot: Snapshot) -> None:
    files = {
        path.name: {"size": path.stat().st_size, "sha256": _hash_file(path)}
        for path in sorted(folder.iterdir())
    }
    facts = {"step": snapshot.step, "best": snapshot.best, "metrics": snapshot.metrics}
    manifest = {"format": FORMAT, WRITTEN_BY: __version__} | facts
    manifest |= {"scope": snapshot.scope, "files": files}
    manifest["sha256"] = _hash_manifest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2), encoding="utf-8")


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _hash_manifest(manifest: Values) -> str:
    """Hash a manifest without its own hash."""
    rest = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _count_bytes(value: object) -> int:
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

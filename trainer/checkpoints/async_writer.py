"""Write checkpoints in the background; training waits only while the state is copied."""

import errno
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError

from trainer.checkpoints.checkpoint import (
    Snapshot,
    newest_step,
    prune,
    take_snapshot,
    write_snapshot,
)
from trainer.checkpoints.staging import Staging
from trainer.core.device import GIB
from trainer.core.errors import CheckpointError, MemoryFragmented, TimbreError
from trainer.core.events import Emit, Event, Notice
from trainer.core.train_state import TrainState

_FAILURES = (OSError, RuntimeError, SafetensorError, TimbreError)
"""What torch, safetensors and our own code raise on a full or failing disk."""


@dataclass(frozen=True)
class _Outcome:
    """How a save ended: events to emit and, if it failed, the reason and the remedy."""

    events: list[Event] = field(default_factory=list)
    failure: str = ""
    remedy: str = ""


class CheckpointWriter:
    """Saves checkpoints in a thread, one at a time, and reports each once it is published.

    If a save fails, a Notice says why and training continues. Leaving the `with` block waits for a
    running save. If the run is about to restart because memory is fragmented, it also saves the
    state that the new process starts from.
    """

    def __init__(self, state: TrainState, emit: Emit) -> None:
        self._state = state
        self._emit = emit
        self._staging = Staging(state.device)
        # A thread is enough, because torch, safetensors and SHA-256 release the interpreter lock
        # while they work. One, because two saves would share the staging buffers.
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._running_save: Future[_Outcome] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._finish()
            # A new process with unfragmented memory continues from here.
            if isinstance(error, MemoryFragmented) and error.step is not None:
                self._save_last(error.step)
        finally:
            self._pool.shutdown(wait=True)  # the process may end next, and must not lose a save

    def save(self, step: int, *, best: bool, wait: bool = False) -> None:
        """Start a save once the previous one has ended; with `wait`, return when it is published.

        Raises:
            CheckpointError: the save failed, and `wait` was set because no other save follows.
        """
        began = time.monotonic()
        # Wait first: the staging buffers are still being read until the previous save is on the
        # disk.
        self._finish()
        try:
            snapshot = take_snapshot(self._state, step, best=best, staging=self._staging)
        except torch.OutOfMemoryError:
            # Evaluation weights in fp32 need extra memory; freeing cached blocks may provide it.
            torch.cuda.empty_cache()
            snapshot = take_snapshot(self._state, step, best=best, staging=self._staging)
        waited_s = time.monotonic() - began
        self._running_save = self._pool.submit(_write, self._state, snapshot, waited_s)
        if wait and (outcome := self._finish()).failure:
            raise CheckpointError(f"{outcome.failure} {outcome.remedy}")

    def _save_last(self, step: int) -> None:
        """Save a step on the main rank before the process ends, unless it is saved already."""
        saved = newest_step(self._state.folder / "checkpoints")
        if self._state.world.is_main and saved != step:
            self.save(step, best=False, wait=True)

    def report_finished(self) -> None:
        """Emit the events of a save that has ended; never waits."""
        if self._running_save is not None and self._running_save.done():
            self._finish()

    def _finish(self) -> _Outcome:
        # Forget the save first, so that its events are emitted once even if a listener raises.
        future, self._running_save = self._running_save, None
        outcome = future.result() if future is not None else _Outcome()
        for event in outcome.events:
            self._emit(event)
        return outcome


def _write(state: TrainState, snapshot: Snapshot, waited_s: float) -> _Outcome:
    """Write a snapshot; if the disk is full, delete older checkpoints but the best and retry."""
    step, parent = snapshot.step, state.folder / "checkpoints"
    events: list[Event] = []
    try:
        saved = write_snapshot(state, snapshot)
    except _FAILURES as error:
        if not _is_full(parent, error, snapshot.size_bytes):
            return _failed(parent, snapshot, error)
        # The latest checkpoint stays: if the second attempt fails too, the run can still resume.
        try:
            prune(parent, keep_last=1)
            saved = write_snapshot(state, snapshot)
        except _FAILURES as second:
            return _failed(parent, snapshot, second)
        text = "The disk was full: older checkpoints were deleted to save the latest one."
        remedy = f"Free space on the disk that holds {parent} or keep fewer checkpoints."
        events.append(Notice("warning", text, remedy, step))
    return _Outcome([replace(saved, waited_s=waited_s), *events])


def _failed(parent: Path, snapshot: Snapshot, error: Exception) -> _Outcome:
    # torch appends a C++ stack to its messages; only the first line is for people.
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    newest = newest_step(parent)
    kept = f"The checkpoint of step {newest} is intact." if newest else "There is no earlier one."
    failure = f"The checkpoint of step {snapshot.step} could not be saved: {reason}. {kept}"
    size_gib = snapshot.size_bytes / GIB
    remedy = f"Free at least {size_gib:.1f} GiB on the disk that holds {parent}, then save again."
    if not _is_full(parent, error, snapshot.size_bytes):
        remedy = f"Make sure that {parent} can be written, then save again."
    return _Outcome([Notice("error", failure, remedy, snapshot.step)], failure, remedy)


def _is_full(parent: Path, error: Exception, size_bytes: int) -> bool:
    """Return whether a save failed for lack of space.

    torch and safetensors drop the system's error number, so their messages and the free space
    decide.
    """
    # Our own errors name another cause, so that deleting checkpoints would not help.
    if isinstance(error, TimbreError):
        return False
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    if "No space left" in str(error):
        return True
    try:
        # A guess, made last: little free space now is the likely reason of an unclear error.
        return shutil.disk_usage(parent).free < size_bytes
    except OSError:
        return False

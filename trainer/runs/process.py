"""Start the training process of a run, detached from the caller, and end it."""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from trainer.core.atomic_io import write_atomic
from trainer.core.child_process import Child, child_environment, start_child
from trainer.core.errors import RunOwned
from trainer.runs.control import answer_request, read_record
from trainer.runs.locks import is_owned, owner_note
from trainer.runs.restart_policy import stays_supervised

# Chosen by hand: a busy machine may take a minute to import torch and 20 s to end a supervisor.
STARTING_GRACE_S, _ENDING_S = 60.0, 20.0
_CLOCK_SKEW_S = 2.0  # tolerance between the system's start times and our clock
_SPAWNED = Path("control") / "spawned.json"


def start_process(folder: Path, command: Sequence[str]) -> Child:
    """Start the command that trains a run, detached, so that it outlives this process.

    Raises:
        RunOwned: a process is training this run already.
    """
    if is_owned(folder) or stays_supervised(folder, _ENDING_S):  # or two would train it
        note = owner_note(folder)
        raise RunOwned(f"The run {folder.name} is being trained already{note}.")
    for request in ("stop", "kill"):  # made to an earlier process
        answer_request(folder, request)
    # numpy's threads would compete with torch's during the alignment.
    environment = {"OPENBLAS_NUM_THREADS": "1"} | child_environment()
    environment.pop("TIMBRE_REPORT", None)  # the new process gets its own supervisor
    with (folder / "log.txt").open("ab") as log:  # append: it is truncated while in use
        process = start_child(
            command,
            output=log,
            lifetime="session",
            environment=environment,
            folder=folder,  # the caller's folder may be removed
        )
    values = {"pid": process.pid, "started_at": time.time()}
    write_atomic(folder / _SPAWNED, json.dumps(values))
    return process


def torchrun_command(folder: Path, processes: int) -> list[str]:
    """Return the torchrun command that trains a run with several processes on this machine."""
    torchrun = ["-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    resume = ["-m", "trainer", "resume", str(folder)]
    return [sys.executable, *torchrun, str(processes), *resume]


def begun_at(folder: Path) -> float:
    """Return when a process was last started for a run, in seconds since 1970, or 0."""
    return max(read_record(folder / name).started_at for name in (_SPAWNED, "owner.json"))


def was_spawned_lately(folder: Path) -> bool:
    """Whether a process was started so lately that it may not own the run yet."""
    return time.time() - read_record(folder / _SPAWNED).started_at < STARTING_GRACE_S


def was_just_spawned(folder: Path, updated_at: float) -> bool:
    """Whether a process was started after the run's last event and is still getting ready."""
    spawned = read_record(folder / _SPAWNED)
    age_s = time.time() - spawned.started_at
    if not spawned.pid or updated_at > spawned.started_at or age_s >= STARTING_GRACE_S:
        return False
    try:
        process = psutil.Process(spawned.pid)
        # A process that started much later got the same PID by chance.
        is_other = process.create_time() > spawned.started_at + _CLOCK_SKEW_S
        return not is_other and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False

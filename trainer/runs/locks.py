"""Lock run folders, and identify processes reliably even when the system reuses their IDs."""

import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import filelock
import psutil

from trainer.core.atomic_io import write_atomic
from trainer.core.child_process import kill_with_descendants
from trainer.core.errors import RunOwned

try:
    import fcntl
except ImportError:  # Windows has no flock; filelock's own lock serves there
    fcntl = None  # type: ignore[assignment]

_OWNER_LOCK, _OWNER = "owner.lock", "owner.json"
_SAME_START_S = 0.05  # Linux counts start times in ticks of 10 ms; this leaves room for rounding


@dataclass(frozen=True)
class ProcessIdentity:
    """Identifies one process for good: a PID may be reused, but not with the same start time.

    `started_at` is in seconds since 1970, as the system reports it; `boot` identifies the boot.
    """

    pid: int
    started_at: float
    boot: str

    @staticmethod
    def of(pid: int) -> "ProcessIdentity | None":
        """Return the identity of a running process, or None."""
        try:
            return ProcessIdentity(pid, psutil.Process(pid).create_time(), boot_id())
        except psutil.Error:
            return None

    @staticmethod
    def read(values: dict[str, Any]) -> "ProcessIdentity | None":
        """Return the identity stored as plain values, or None if they are malformed."""
        try:
            return ProcessIdentity(
                int(values["pid"]), float(values["started_at"]), str(values["boot"])
            )
        except (KeyError, TypeError, ValueError, ArithmeticError):
            return None

    @property
    def is_alive(self) -> bool:
        """Whether this exact process still runs on this machine and is not a zombie."""
        if self.boot != boot_id():
            return False
        try:
            process = psutil.Process(self.pid)
            is_same = abs(process.create_time() - self.started_at) < _SAME_START_S
            return is_same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@cache
def boot_id() -> str:
    """Return an identifier of the current boot of this machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"booted at {psutil.boot_time():.0f}"


def kill_tree(identity: ProcessIdentity) -> None:
    """Kill a process and all its descendants; do nothing if the PID now belongs to another one."""
    if identity.is_alive:
        kill_with_descendants(identity.pid)


def acquire_lock(path: Path, *, timeout_s: float = 0.0) -> filelock.BaseFileLock | None:
    """Take the exclusive lock, or return None if another process holds it for `timeout_s`."""
    lock = filelock.FileLock(path, timeout=timeout_s, thread_local=False)
    while True:
        try:
            lock.acquire(poll_interval=0.01)
        except filelock.Timeout:
            # Pages query the lock all the time with a shared lock; retry when it was only a query.
            if fcntl is None or is_locked(path):
                return None
        else:
            return lock


def is_locked(path: Path) -> bool:
    """Return whether a process holds the exclusive lock, without disturbing the holder.

    A query takes a shared lock for a moment: with an exclusive one, two simultaneous queries would
    mistake each other for the owner. `acquire_lock` retries when it meets a query.
    """
    if fcntl is None:
        lock = acquire_lock(path)
        if lock is not None:
            lock.release()
        return lock is None
    try:
        # Reading is enough for a query, and works in a folder of another user.
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def take_run(folder: Path, *, timeout_s: float = 0.0) -> filelock.BaseFileLock:
    """Take a run's exclusive lock, which the system releases when the process ends.

    Raises:
        RunOwned: another process is training this run.
    """
    lock = acquire_lock(folder / _OWNER_LOCK, timeout_s=timeout_s)
    if lock is None:
        raise RunOwned(
            f"The run {folder.name} is being trained by another process{owner_note(folder)}. "
            f"Watch it with: python -m trainer status {folder}"
        )
    return lock


def is_owned(folder: Path) -> bool:
    """Return whether a running process holds the run's lock."""
    return is_locked(folder / _OWNER_LOCK)


def write_owner(folder: Path) -> None:
    """Record that this process owns the run; only the lock decides, this is for messages."""
    identity = ProcessIdentity.of(os.getpid())
    values = asdict(identity) if identity is not None else {}
    write_atomic(folder / _OWNER, json.dumps(values))


def read_owner(folder: Path) -> ProcessIdentity | None:
    """Return the process that owns a run, or None; a stale record does not count."""
    try:
        values = json.loads((folder / _OWNER).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    identity = ProcessIdentity.read(values)
    return identity if identity is not None and is_owned(folder) and identity.is_alive else None


def owner_note(folder: Path) -> str:
    """Return the process that owns a run for a message, or ''."""
    owner = read_owner(folder)
    return f" (process {owner.pid})" if owner is not None else ""

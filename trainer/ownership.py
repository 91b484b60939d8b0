"""Ownership of a run folder: a lock that ends with its process, and processes told apart."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import filelock
import psutil

try:
    import fcntl
except ImportError:  # Windows has no flock; filelock's own lock serves there
    fcntl = None  # type: ignore[assignment]

_SAME_START_S = 0.05


@dataclass(frozen=True)
class Identity:
    """One process for all times: its number may be given to another, but not at the same start.

    `started_at` is what the system says of it, in seconds since 1970, `boot` the boot it lives in.
    """

    pid: int
    started_at: float
    boot: str

    @staticmethod
    def of(pid: int) -> "Identity | None":
        """Return the identity of a process that lives now, or None."""
        try:
            return Identity(pid, psutil.Process(pid).create_time(), boot_id())
        except psutil.Error:
            return None

    @staticmethod
    def read(values: dict[str, Any]) -> "Identity | None":
        """Return the identity that was written down as plain values, or None."""
        try:
            return Identity(int(values["pid"]), float(values["started_at"]), str(values["boot"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def is_alive(self) -> bool:
        """Whether this very process still lives on this machine, and not only as a zombie."""
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
    """Return what tells this boot of this machine from all others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"booted at {psutil.boot_time():.0f}"


def kill_tree(identity: Identity) -> None:
    """End a process and all it started, at once; one that is gone, or another one now, is left."""
    if not identity.is_alive:
        return
    try:
        process = psutil.Process(identity.pid)
        family = [*process.children(recursive=True), process]
    except psutil.Error:
        return
    for member in family:
        try:
            member.kill()  # psutil compares the start time before it sends anything
        except psutil.Error:
            continue


def take_lock(path: Path, *, timeout_s: float = 0.0) -> filelock.BaseFileLock | None:
    """Take the exclusive lock, or return None when another process keeps it for `timeout_s`."""
    lock = filelock.FileLock(path, timeout=timeout_s, thread_local=False)
    while True:
        try:
            lock.acquire(poll_interval=0.01)
        except filelock.Timeout:
            # Somebody who only asked, as pages do all the time, keeps nobody out.
            if fcntl is None or is_locked(path):
                return None
        else:
            return lock


def is_locked(path: Path) -> bool:
    """Tell whether some process holds the exclusive lock; asking never disturbs the holder.

    Askers take a shared lock for an instant, so that two of them do not see each other; who takes
    the lock in that instant tries again.
    """
    if fcntl is None:
        lock = take_lock(path)
        if lock is not None:
            lock.release()
        return lock is None
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False

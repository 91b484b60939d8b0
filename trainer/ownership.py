"""Ownership of a run folder: an operating-system lock that ends with the process that holds it."""

import os
from pathlib import Path

import filelock

try:
    import fcntl
except ImportError:  # Windows has no flock; filelock's own lock serves there
    fcntl = None  # type: ignore[assignment]


def take_lock(path: Path, *, timeout_s: float = 0.0) -> filelock.BaseFileLock | None:
    """Take the exclusive lock, or return None when another process keeps it for `timeout_s`."""
    lock = filelock.FileLock(path, timeout=timeout_s, thread_local=False)
    try:
        lock.acquire(poll_interval=0.01)
    except filelock.Timeout:
        return None
    return lock


def is_locked(path: Path) -> bool:
    """Tell whether some process holds the exclusive lock; asking never disturbs the holder.

    Askers take a shared lock for an instant, so that two of them do not see each other; an owner
    that starts in that instant retries (`timeout_s`).
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

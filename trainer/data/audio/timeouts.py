"""Read many files in parallel with a timeout per file, so that a dead share does not block."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

Item = TypeVar("Item")
Found = TypeVar("Found")

_CHUNK = 64  # Items a thread takes from the queue at once.
_LOOK_EVERY_S = 0.2  # How late a timeout may be noticed; by hand: small next to any timeout.


class _Reader(threading.Thread, Generic[Item, Found]):
    """A thread that reads items until none are left.

    It is a daemon, so that a read that hangs does not keep the program from exiting.
    """

    def __init__(
        self,
        read: Callable[[Item], Found],
        waiting: "SimpleQueue[list[Item]]",
        found: "SimpleQueue[tuple[Item, Found]]",
    ) -> None:
        super().__init__(daemon=True)
        self._read, self._waiting, self._found = read, waiting, found
        self._lock = threading.Lock()
        self._chunk: list[Item] = []
        self._current: tuple[float, Item] | None = None
        self._is_abandoned = False
        self._is_done = False

    def run(self) -> None:
        """Read chunk after chunk; an abandoned thread reports nothing more."""
        try:
            while True:
                self._chunk = self._waiting.get_nowait()
                while self._next():
                    pass
        except Empty:
            self._is_done = True

    @property
    def is_broken(self) -> bool:
        """Tell whether the thread died of a bug; its traceback has been printed."""
        return not self.is_alive() and not self._is_done

    def _next(self) -> bool:
        with self._lock:
            if self._is_abandoned:
                # Its items belong to another thread by now, which would report them again.
                raise Empty
            if not self._chunk:
                self._current = None
                return False
            item = self._chunk.pop()
            self._current = (time.monotonic(), item)
        # Not under the lock: `abandon` needs it while this hangs.
        found = self._read(item)
        with self._lock:
            # A late result has already been reported as a timeout.
            if not self._is_abandoned:
                self._found.put((item, found))
        return True

    def abandon(self, timeout_s: float) -> tuple[Item, list[Item]] | None:
        """Abandon the thread if its item takes too long; return the item and the rest, or None."""
        with self._lock:
            if self._is_abandoned or self._current is None:
                return None
            since, item = self._current
            if time.monotonic() - since < timeout_s:
                return None
            self._is_abandoned = True
            return item, self._chunk


def read_with_timeout(
    read: Callable[[Item], Found], items: Sequence[Item], *, workers: int, timeout_s: float
) -> Iterator[tuple[Item, Found | None]]:
    """Yield each item with the result of `read`, in any order; None means it timed out.

    `read` must not raise. A read that hangs keeps its thread until the program exits.
    """
    waiting: SimpleQueue[list[Item]] = SimpleQueue()
    found: SimpleQueue[tuple[Item, Found]] = SimpleQueue()
    for start in range(0, len(items), _CHUNK):
        waiting.put(list(items[start : start + _CHUNK]))
    readers = [_start(read, waiting, found) for _ in range(min(workers, len(items)))]
    left = len(items)
    while left:
        try:
            yield found.get(timeout=min(_LOOK_EVERY_S, timeout_s))
            left -= 1
        except Empty:
            if any(reader.is_broken for reader in readers):
                raise RuntimeError(f"{left} files were not read; see the error above.") from None
            for slow in [given for reader in readers if (given := reader.abandon(timeout_s))]:
                # Before the thread starts, because a thread that finds the queue empty ends.
                waiting.put(slow[1])
                readers.append(_start(read, waiting, found))
                yield slow[0], None
                left -= 1


def _start(
    read: Callable[[Item], Found],
    waiting: "SimpleQueue[list[Item]]",
    found: "SimpleQueue[tuple[Item, Found]]",
) -> "_Reader[Item, Found]":
    reader = _Reader(read, waiting, found)
    reader.start()
    return reader

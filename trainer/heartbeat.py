"""Heartbeat: a training process shows that it moves; who looks can tell a hung one from a slow one.

A thread of the process looks once a second where the main thread is. While that changes, or events
come, it touches `control/heartbeat-RANK`; a process that waits for ever at one place, is stopped or
holds everything up, does not. The file names the process and how long it may keep still.
"""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from trainer.events import Event, StepDone
from trainer.ownership import Identity, kill_tree

Emit = Callable[[Event], None]
LEAST_S = 60.0
_STEPS = 20.0
"""Times the usual seconds of a step, if that is more."""
_BETWEEN_S = 600.0
"""For what is no step: loading, compiling and the like may take long within one call."""
_TELLS_APART = 50


@dataclass(frozen=True)
class Pulse:
    """The last sign of life of one training process: which it is, and how long ago that was."""

    identity: Identity
    limit_s: float
    age_s: float

    @property
    def is_stalled(self) -> bool:
        """Whether it keeps still for longer than it may."""
        return self.age_s > self.limit_s


def read_pulses(folder: Path) -> list[Pulse]:
    """Return the last signs of life of the processes that train a run, or trained it last."""
    found = []
    for path in sorted((folder / "control").glob("heartbeat-*")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            age_s = time.time() - path.stat().st_mtime
            identity = Identity.read(values)
            if identity is not None:
                # A clock set back leaves signs of life in the future; they are signs all the same.
                found.append(Pulse(identity, float(values["limit_s"]), max(0.0, age_s)))
        except (OSError, ValueError, KeyError):
            continue
    return found


def end_orphans(folder: Path, parent: Identity | None) -> int:
    """End processes of an earlier start that still live though the run has a new owner.

    They are known by boot, number and start time, never by name; what started after `parent`, the
    common parent of all that train now, is no orphan. Returns how many there were.
    """
    if parent is None:
        return 0
    left = [
        pulse.identity
        for pulse in read_pulses(folder)
        if pulse.identity.started_at < parent.started_at and pulse.identity.is_alive
    ]
    for identity in left:
        kill_tree(identity)
    return len(left)


class Heartbeat(threading.Thread):
    """Watches the main thread of this process, and leaves signs of life in the run's folder."""

    def __init__(
        self, folder: Path, identity: Identity, rank: int = 0, *, every_s: float = 1.0
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._path = folder / "control" / f"heartbeat-{rank}"
        self._identity = identity
        self._every_s = every_s
        self._watched = threading.main_thread().ident
        self._seconds: deque[float] = deque(maxlen=_TELLS_APART)
        self._num_events = 0
        self._limit_s = 0.0
        self._seen: Hashable = None
        self._ended = threading.Event()

    def of_thread(self, thread: int | None) -> None:
        """Watch another thread than the main one."""
        self._watched = thread

    def watch(self, emit: Emit) -> Emit:
        """Return an `emit` whose events count as signs of life and tell how long steps take."""

        def emit_and_note(event: Event) -> None:
            self._num_events += 1
            if isinstance(event, StepDone) and "perf/s_per_step" in event.metrics:
                self._seconds.append(event.metrics["perf/s_per_step"])
            emit(event)

        return emit_and_note

    def run(self) -> None:
        """Touch the file while the main thread moves, until told to end."""
        while True:
            self.look()
            if self._ended.wait(self._every_s):
                return

    def look(self) -> None:
        """Look once where the main thread is, and leave a sign of life if it has moved."""
        places, is_in_step = _places_of(self._watched)
        seen = (self._num_events, places)
        has_moved, self._seen = seen != self._seen, seen
        if has_moved:
            try:
                self._leave_sign(is_in_step)
            except OSError:  # a full disk or a share that went away is no reason to end
                return

    def end(self) -> None:
        """End the thread and take the sign away: the process ends by itself."""
        self._ended.set()
        if self.is_alive():
            self.join()
        self._path.unlink(missing_ok=True)

    def _leave_sign(self, is_in_step: bool) -> None:
        limit_s = _BETWEEN_S
        if is_in_step and self._seconds:
            limit_s = max(LEAST_S, _STEPS * median(list(self._seconds)))
        if round(limit_s) != round(self._limit_s) or not self._path.exists():
            values = asdict(self._identity) | {"limit_s": limit_s}
            partial = self._path.with_name(f".{self._path.name}")
            partial.write_text(json.dumps(values), encoding="utf-8")
            partial.replace(self._path)
            self._limit_s = limit_s
        else:
            self._path.touch()


def _places_of(thread: int | None) -> tuple[Hashable, bool]:
    """Return where a thread is in every function it is in, and whether it is within a step."""
    frame = sys._current_frames().get(thread or 0)
    places, is_in_step = [], False
    while frame is not None:
        places.append((id(frame), frame.f_lasti))
        is_in_step = is_in_step or frame.f_code.co_name == "train_step"
        frame = frame.f_back
    return tuple(places), is_in_step

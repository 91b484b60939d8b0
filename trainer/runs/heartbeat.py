"""Write a heartbeat file while a training process makes progress, so that a hang is noticed.

A thread looks once a second where the main thread is in its code. While that changes, or events
arrive, it touches `control/heartbeat-RANK`; a process that is deadlocked or suspended does not.
The file identifies the process and says how long it may go without progress. CPU time would not
tell a hang, because waiting for a GPU spins.
"""

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Hashable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from trainer.core.atomic_io import write_atomic
from trainer.core.events import Event, StepDone
from trainer.core.metrics import S_PER_STEP
from trainer.runs.locks import ProcessIdentity, kill_tree

# How long a process may go without progress before it counts as hung; all chosen by hand. Within a
# step 60 s or 20 usual steps, whichever is more. Outside of steps 10 minutes, because loading and
# compiling are single calls that take long.
LEAST_S = 60.0
_STEPS = 20.0
_BETWEEN_S = 600.0
_TELLS_APART = 50  # steps whose median is the usual length of a step


@dataclass(frozen=True)
class Pulse:
    """The last heartbeat of one training process: which process it is, and how long ago it was."""

    identity: ProcessIdentity
    limit_s: float
    age_s: float

    @property
    def is_stalled(self) -> bool:
        """Whether the process has made no progress for longer than its limit."""
        return self.age_s > self.limit_s


def read_pulses(folder: Path) -> list[Pulse]:
    """Return the last heartbeats of the processes that train a run, or trained it last."""
    found = []
    for path in sorted((folder / "control").glob("heartbeat-*")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            age_s = time.time() - path.stat().st_mtime
            identity = ProcessIdentity.read(values)
            if identity is not None:
                # If the clock was set back, heartbeats lie in the future; count them as recent.
                found.append(Pulse(identity, float(values["limit_s"]), max(0.0, age_s)))
        except (OSError, ValueError, KeyError):
            continue  # removed meanwhile, or torn by a full disk
    return found


def end_orphans(folder: Path, parent: ProcessIdentity | None) -> int:
    """Kill processes of an earlier start that still live although the run has a new owner.

    Processes are identified by boot, process id and start time, never by name. Those that started
    after `parent`, the common parent of all processes that train now, are not orphans. Returns how
    many were killed.
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
    """Watches the main thread of this process and writes heartbeats to the run's folder."""

    def __init__(
        self, folder: Path, identity: ProcessIdentity, rank: int = 0, *, every_s: float = 1.0
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)  # must not keep a process alive
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
        """Watch another thread instead of the main one."""
        self._watched = thread

    def receive(self, event: Event) -> None:
        """Count an event as progress and note the length of steps."""
        self._num_events += 1
        if isinstance(event, StepDone) and S_PER_STEP in event.metrics:
            self._seconds.append(event.metrics[S_PER_STEP])

    def run(self) -> None:
        """Touch the file while the main thread makes progress, until `end` is called."""
        while True:
            self.check()
            if self._ended.wait(self._every_s):
                return

    def check(self) -> None:
        """Check once where the main thread is, and write a heartbeat if it has moved."""
        places, is_in_step = _places_of(self._watched)
        seen = (self._num_events, places)
        has_moved, self._seen = seen != self._seen, seen
        if has_moved:
            try:
                self._write_pulse(is_in_step)
            except OSError:  # a full disk or a lost network share must not end the thread
                return

    def end(self) -> None:
        """End the thread and remove the heartbeat, because the process ends normally."""
        self._ended.set()
        if self.is_alive():
            self.join()
        self._path.unlink(missing_ok=True)

    def _write_pulse(self, is_in_step: bool) -> None:
        limit_s = _BETWEEN_S
        if is_in_step and self._seconds:
            limit_s = max(LEAST_S, _STEPS * median(list(self._seconds)))
        # Touching a file is cheaper than writing it; write only when the limit changed.
        if round(limit_s) != round(self._limit_s) or not self._path.exists():
            values = asdict(self._identity) | {"limit_s": limit_s}
            write_atomic(self._path, json.dumps(values))
            self._limit_s = limit_s
        else:
            self._path.touch()


def _places_of(thread: int | None) -> tuple[Hashable, bool]:
    """Return a thread's position in every function on its stack, and whether it is in a step."""
    # The instruction, not the line: a loop on one line makes progress as well.
    frame = sys._current_frames().get(thread or 0)
    places, is_in_step = [], False
    while frame is not None:
        places.append((id(frame), frame.f_lasti))
        is_in_step = is_in_step or frame.f_code.co_name == "train_step"
        frame = frame.f_back
    return tuple(places), is_in_step

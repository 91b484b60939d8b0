"""What both sides of the race share: CPU clocks, epochs in turns, and words to the referee.

Needs the standard library alone, since each side runs in an environment of its own.
"""

import json
import os
import resource
import sys
import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Moment:
    """CPU seconds of the process and of its ended children, and the wall clock."""

    cpu_s: float
    wall_s: float

    @staticmethod
    def now() -> "Moment":
        """Read both clocks."""
        usages = [
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        return Moment(sum(use.ru_utime + use.ru_stime for use in usages), time.monotonic())

    def until(self, later: "Moment") -> dict[str, float]:
        """Return what passed between two moments."""
        return {"cpu_s": later.cpu_s - self.cpu_s, "wall_s": later.wall_s - self.wall_s}


class Marks:
    """Measures epochs and tells the referee about each; then waits for leave to run the next.

    Whatever a library prints goes to stderr: stdout belongs to the referee.
    """

    def __init__(self) -> None:
        self._words = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._start = self._last = self._train_start = Moment.now()
        self._part_start = self._start.cpu_s
        self._parts: dict[str, float] = {}
        self._epoch: dict[str, Any] = {}

    def prepared(self, **facts: Any) -> None:
        """The next thing is the first step: tell what came before it, then wait."""
        self._tell({"prepared": self._start.until(Moment.now()), **facts})
        self._wait()

    def part_begins(self) -> None:
        """A part of a step begins."""
        self._part_start = Moment.now().cpu_s

    def part_ends(self, name: str) -> None:
        """Add the CPU seconds of a part of a step to those of its name in this epoch."""
        now = Moment.now().cpu_s
        self._parts[name] = self._parts.get(name, 0.0) + now - self._part_start
        self._part_start = now

    def steps_begin(self) -> None:
        """From here to `trained` there is nothing but steps."""
        self._train_start = Moment.now()

    def trained(self, steps: int) -> None:
        """So many steps are done since they began, at the end of an epoch's training."""
        self._epoch = {"steps": steps, "train": self._train_start.until(Moment.now())}

    def epoch_done(self, **facts: Any) -> None:
        """An epoch is over: tell about it, and all it needed since the last one, then wait."""
        whole = self._last.until(Moment.now())
        self._tell({"epoch": self._epoch | {"whole": whole, "parts": self._parts, **facts}})
        self._parts = {}
        self._wait()

    def finished(self, **facts: Any) -> None:
        """Nothing more is measured."""
        self._tell({"finished": facts})

    def _tell(self, word: dict[str, Any]) -> None:
        self._words.write(json.dumps(word) + "\n")

    def _wait(self) -> None:
        if not sys.stdin.readline():
            sys.exit("The referee has gone.")
        self._last = self._train_start = Moment.now()

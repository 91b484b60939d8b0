"""Stands in for `python -m trainer synthesize --stream`: a tone whose second half waits.

The text says what goes wrong: `refuse` before any sound, `break` after the first half, `wait`
before any sound. Otherwise the second half comes once a file `go-on` lies in the run folder; until
then "On and on." is never silent.
"""

import array
import math
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

RATE = 24_000


def main(words: list[str]) -> int:
    """Speak like the command line of these words."""
    run = Path(words[1])
    text = next(word.removeprefix("--text=") for word in words if word.startswith("--text="))
    (run / "speaker.pid").write_text(str(os.getpid()), encoding="utf-8")
    if text == "refuse":
        print("Error: Nothing of this can be spoken.", file=sys.stderr)
        return 1
    _wait_until(lambda: text != "wait")
    sys.stdout.buffer.write(_header() + _tone(2.0))
    sys.stdout.buffer.flush()
    if text == "break":
        print("Error: The voice broke.", file=sys.stderr)
        return 1
    spoken_s = 3.0
    while text == "On and on." and not (run / "go-on").exists():
        sys.stdout.buffer.write(_tone(0.5))
        sys.stdout.buffer.flush()
        spoken_s += 0.5
        time.sleep(0.4)
    _wait_until((run / "go-on").exists)
    sys.stdout.buffer.write(_tone(1.0))
    (run / "spoken-s").write_text(str(spoken_s), encoding="utf-8")
    return 0


def _wait_until(is_met: Callable[[], bool]) -> None:
    # Not for ever: a killed server leaves nobody who would end this process.
    for _ in range(3000):
        if is_met():
            return
        time.sleep(0.02)


def _tone(seconds: float) -> bytes:
    count = int(seconds * RATE)
    return array.array("h", [int(9000 * math.sin(i / 20)) for i in range(count)]).tobytes()


def _header() -> bytes:
    open_end = 0xFFFFFFFF
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", open_end, b"WAVE") + form + b"data\xff\xff\xff\xff"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

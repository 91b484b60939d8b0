"""Limit the size of the log that the training process and its libraries print to."""

import os
from pathlib import Path

from trainer.core.device import MIB

# Chosen by hand: several days of ordinary output, and small enough for a text editor to open.
MOST_BYTES = 16 * MIB
_KEPT_BYTES = 4 * MIB  # the end of a log explains a crash; the middle rarely matters


def cap_log(path: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Move the end of an oversized log to `log.1.txt`, truncate it, and return whether it did.

    All writers open the log in append mode, so after truncation they continue at its new start.
    """
    try:
        size = path.stat().st_size
        if size <= most_bytes:
            return False
        with path.open("rb") as file:
            file.seek(max(0, size - min(_KEPT_BYTES, most_bytes)))
            end = file.read(min(_KEPT_BYTES, most_bytes))
        # Truncate before writing the copy, so that a full disk has room for it.
        os.truncate(path, 0)
        path.with_name(f"{path.stem}.1{path.suffix}").write_bytes(end)
    except OSError:
        return False  # a log that cannot be rotated must not stop training
    return True

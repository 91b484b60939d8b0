"""Logs: what the training process and its libraries print, kept within bounds."""

import os
from pathlib import Path

MOST_BYTES = 16 * 2**20
_KEPT_BYTES = 4 * 2**20


def cap_log(path: Path, most_bytes: int = MOST_BYTES) -> bool:
    """Keep the end of a log that grew too long as `log.1.txt`, empty it, and say whether it did.

    Everyone appends to it, so that writers go on at its new beginning without noticing.
    """
    try:
        size = path.stat().st_size
        if size <= most_bytes:
            return False
        with path.open("rb") as file:
            file.seek(max(0, size - min(_KEPT_BYTES, most_bytes)))
            end = file.read(min(_KEPT_BYTES, most_bytes))
        os.truncate(path, 0)
        path.with_name(f"{path.stem}.1{path.suffix}").write_bytes(end)
    except OSError:
        # A full disk: emptying the log came first and made room.
        return False
    return True

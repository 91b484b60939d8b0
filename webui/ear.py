"""Ear: what was heard of clips so far, so that no file is listened to twice."""

import os
import threading
from collections.abc import Sequence

from trainer.data.quality import Quality, measure_files
from trainer.data.types import Clip

MOST = 3000
"""Clips that are listened to at most; of more, every so-and-so-many-th."""


class Ear:
    """The qualities of files by path, forgotten when a file changes."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, int], Quality | None] = {}
        self._lock = threading.Lock()

    def listen(self, clips: Sequence[Clip]) -> str:
        """Listen to the clips that were not heard yet, and say to how many of them."""
        with_sound = [clip.audio_path for clip in clips if clip.audio_path]
        stride = -(-len(with_sound) // MOST) or 1
        chosen = with_sound[::stride]
        keys = {path: _key(path) for path in chosen}
        with self._lock:
            missing = [path for path, key in keys.items() if key not in self._heard]
            found = measure_files(missing)
            self._heard |= {keys[path]: found.get(path) for path in missing}
        if len(chosen) < len(with_sound):
            return f"{len(chosen)} of {len(with_sound)} clips were listened to, evenly spread."
        return f"All {len(chosen)} clips were listened to."

    def known(self, clips: Sequence[Clip]) -> dict[str, Quality]:
        """Return what is known of clips by audio path, without listening."""
        pairs = ((clip.audio_path, self._heard.get(_key(clip.audio_path))) for clip in clips)
        return {path: quality for path, quality in pairs if quality is not None}


def _key(path: str) -> tuple[str, int]:
    try:
        return path, os.stat(path).st_mtime_ns
    except OSError:
        return path, 0

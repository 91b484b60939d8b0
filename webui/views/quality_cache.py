"""Cache the audio quality of clips, so that each file is analyzed once."""

import os
import threading
from collections.abc import Sequence

from trainer.core.types import Clip
from trainer.data.audio.quality import Quality, measure_files

MAX_CLIPS = 3000
"""Most clips to analyze; beyond that, every n-th clip. Chosen by hand to keep the wait short."""


class QualityCache:
    """Audio quality by file path; an entry expires when its file changes."""

    def __init__(self) -> None:
        self._qualities: dict[tuple[str, int], Quality | None] = {}
        self._lock = threading.Lock()

    def measure(self, clips: Sequence[Clip]) -> str:
        """Analyze the clips that are not cached yet, and return a sentence with the count."""
        with_sound = [clip.audio_path for clip in clips if clip.audio_path]
        stride = -(-len(with_sound) // MAX_CLIPS) or 1
        chosen = with_sound[::stride]
        keys = {path: _key(path) for path in chosen}
        with self._lock:
            missing = [path for path, key in keys.items() if key not in self._qualities]
            found = measure_files(missing)
            self._qualities |= {keys[path]: found.get(path) for path in missing}
        if len(chosen) < len(with_sound):
            return f"{len(chosen)} of {len(with_sound)} clips were analyzed, evenly sampled."
        return f"All {len(chosen)} clips were analyzed."

    def cached(self, clips: Sequence[Clip]) -> dict[str, Quality]:
        """Return the cached quality of clips by audio path, without analyzing any."""
        pairs = ((clip.audio_path, self._qualities.get(_key(clip.audio_path))) for clip in clips)
        return {path: quality for path, quality in pairs if quality is not None}


def _key(path: str) -> tuple[str, int]:
    try:
        return path, os.stat(path).st_mtime_ns
    except OSError:
        return path, 0

"""Balance languages by repeating clips of rarer languages in an epoch."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from trainer.core.types import Clip


def count_repeats(clips: Sequence[Clip], balance: float) -> dict[str, int]:
    """Return how often each clip occurs in an epoch, by clip id; at least once.

    A language with n clips is repeated (N / n) ** balance times, where N is the number of clips
    of the most frequent language. At 0, clips are not repeated; at 1, all languages have the same
    share. The fractional part is rounded up for clips chosen by their id, the same in every epoch.
    """
    sizes = Counter(clip.language for clip in clips)
    largest = max(sizes.values(), default=1)
    repeats = {}
    for clip in clips:
        wanted = (largest / sizes[clip.language]) ** balance
        # That share of the clips gets one repeat more, so the total is right on average.
        repeats[clip.id] = int(wanted) + (_place(clip.id) < wanted % 1)
    return repeats


def _place(clip_id: str) -> float:
    """Return a pseudo-random number in 0..1 that is the same on every machine."""
    digest = hashlib.blake2b(f"balance/{clip_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64

"""Balance: clips of rarer languages come more often in an epoch."""

import hashlib
from collections import Counter
from collections.abc import Sequence

from trainer.data.types import Clip


def count_repeats(clips: Sequence[Clip], balance: float) -> dict[str, int]:
    """Return how often each clip comes in an epoch, by clip id; every clip comes at least once.

    A language with n of the most frequent one's N clips is repeated (N / n) ** balance times: 0
    leaves the clips as they are, 1 gives every language the same share. What is left of a whole
    number goes to clips chosen by their id, the same in every epoch.
    """
    sizes = Counter(clip.language for clip in clips)
    largest = max(sizes.values(), default=1)
    repeats = {}
    for clip in clips:
        wanted = (largest / sizes[clip.language]) ** balance
        repeats[clip.id] = int(wanted) + (_place(clip.id) < wanted % 1)
    return repeats


def _place(clip_id: str) -> float:
    """Return a number in 0..1 that looks random; the same on every machine."""
    digest = hashlib.blake2b(f"balance/{clip_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64

"""Helpers for the surveys of model families: read clips, number speakers."""

from collections.abc import Callable, Sequence

import numpy as np

from trainer.core.errors import DataError
from trainer.core.specs import Progress
from trainer.core.types import Clip, Features


def read_clips(
    clips: Sequence[Clip], read: Callable[[Clip], Features], label: str, progress: Progress
) -> tuple[dict[str, Features], dict[str, str]]:
    """Return the features of readable clips and the reasons why others are left out, by clip id.

    Raises:
        DataError: no train clip is left; the message names the family by its `label`.
    """
    ready: dict[str, Features] = {}
    unusable: dict[str, str] = {}
    progress("Reading the text", 0, len(clips))
    for done, clip in enumerate(clips, 1):
        try:
            ready[clip.id] = read(clip)
        except DataError as error:
            # One bad clip must not stop a run; the ledger shows why it is left out.
            unusable[clip.id] = str(error)
        progress("Reading the text", done, len(clips))
    if not any(clip.split == "train" for clip in clips if clip.id in ready):
        reason = next(iter(unusable.values()), "none of them is in the train split.")
        raise DataError(f"None of the clips can be used for {label}. First reason: {reason}")
    return ready, unusable


def number_speakers(clips: Sequence[Clip], ready: dict[str, Features]) -> list[str]:
    """Set each clip's speaker number in `ready`; return the speakers' names in that order."""
    # Numbers go by first appearance, so the same list of clips always gives the same ones.
    numbers: dict[str, int] = {}
    for clip in clips:
        number = numbers.setdefault(clip.speaker, len(numbers))
        ready[clip.id]["speaker"] = np.array(number, np.int32)
    return list(numbers)

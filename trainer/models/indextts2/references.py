"""References: whose voice and emotion stand before a clip at a step."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from trainer.data.types import Features
from trainer.models.indextts2.batches import OWN_EMOTION
from trainer.specs import Draw

_VOICES = ("condition", "emotion", "reference")


def draws(features: Mapping[str, Features]) -> Draw:
    """Return a function that gives every clip the voice of another clip of its speaker.

    Pairs keep the prompt that their manifest names. A speaker's only clip has nothing but itself.
    """
    speakers: defaultdict[int, list[str]] = defaultdict(list)
    for clip_id, clip in features.items():
        if not clip["is_pair"]:
            speakers[int(clip["speaker"])].append(clip_id)

    def draw(clip_id: str, of_step: np.random.Generator, rng: np.random.Generator) -> Features:
        own = features[clip_id]
        found = {name: own[name] for name in ("tokens", "codes", "layout")}
        others = () if own["is_pair"] else speakers[int(own["speaker"])]
        lender = features[_other(others, clip_id, rng)]
        found |= {name: lender[name] for name in _VOICES if name in lender}
        if own["layout"][OWN_EMOTION] and "emotion" in own:
            found["emotion"] = own["emotion"]
        return found

    return draw


def _other(ids: "list[str] | tuple[()]", clip_id: str, rng: np.random.Generator) -> str:
    """Return one of the ids that is not the clip's, or the clip's where there is no other."""
    if len(ids) < 2 and (not ids or ids[0] == clip_id):
        return clip_id
    first = int(rng.integers(len(ids)))
    chosen = ids[first]
    return (
        chosen
        if chosen != clip_id
        else ids[(first + 1 + int(rng.integers(len(ids) - 1))) % len(ids)]
    )

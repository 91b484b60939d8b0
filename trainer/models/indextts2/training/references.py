"""Choose the clip whose voice and emotion condition another clip at a step."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from trainer.core.specs import Draw
from trainer.core.types import Features
from trainer.models.indextts2.training.batches import OWN_EMOTION

_VOICES = ("condition", "emotion", "reference")


def draws(features: Mapping[str, Features]) -> Draw:
    """Return a function that gives a clip the voice of a random other clip of its speaker.

    Conditioning a clip on itself would let its content leak into the prompt. Pairs keep the prompt
    of their manifest; a speaker's only clip has to use itself.
    """
    speakers: defaultdict[int, list[str]] = defaultdict(list)
    for clip_id, clip in features.items():
        if not clip["is_pair"]:
            speakers[int(clip["speaker"])].append(clip_id)

    def draw(clip_id: str, of_step: np.random.Generator, rng: np.random.Generator) -> Features:
        own = features[clip_id]
        found = {name: own[name] for name in ("tokens", "codes", "layout")}
        # The voice of a pair already is that of its prompt.
        others = () if own["is_pair"] else speakers[int(own["speaker"])]
        lender = features[_other(others, clip_id, rng)]
        found |= {name: lender[name] for name in _VOICES if name in lender}
        if own["layout"][OWN_EMOTION] and "emotion" in own:
            found["emotion"] = own["emotion"]
        return found

    return draw


def _other(ids: "list[str] | tuple[()]", clip_id: str, rng: np.random.Generator) -> str:
    """Return a random id other than the clip's, or the clip's if there is no other."""
    if len(ids) < 2 and (not ids or ids[0] == clip_id):
        return clip_id
    # Two draws give every other clip the same probability without a list of the others.
    first = int(rng.integers(len(ids)))
    chosen = ids[first]
    return (
        chosen
        if chosen != clip_id
        else ids[(first + 1 + int(rng.integers(len(ids) - 1))) % len(ids)]
    )

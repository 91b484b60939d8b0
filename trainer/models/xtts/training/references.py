"""Choose the audio that conditions the voice of a clip at a step."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from trainer.core.specs import Draw
from trainer.core.types import Features
from trainer.models.xtts.network.sizes import CODE_STRIDE, HOP_LENGTH, SAMPLE_RATE

# coqui-tts's recipe also conditions on 3 to 6 s.
SHORTEST_FRAMES = round(3.0 * SAMPLE_RATE / HOP_LENGTH)
LONGEST_FRAMES = round(6.0 * SAMPLE_RATE / HOP_LENGTH)
_FRAMES_A_CODE = CODE_STRIDE // HOP_LENGTH


def draws(features: Mapping[str, Features]) -> Draw:
    """Return a function that draws a reference of a clip's speaker at each step.

    The reference is 6 s of other clips, joined if they are short; `collate` crops it to between 3
    and 6 s. A speaker's only clip uses at most half of itself as the reference. The codes of that
    part are left out of the loss, so that the network cannot learn to copy them.
    """
    speakers: defaultdict[int, list[str]] = defaultdict(list)
    for clip_id, clip in features.items():
        speakers[int(clip["speaker"])].append(clip_id)

    def draw(clip_id: str, of_step: np.random.Generator, rng: np.random.Generator) -> Features:
        own = features[clip_id]
        ids = speakers[int(own["speaker"])]
        found = {name: own[name] for name in ("tokens", "codes", "layout")}
        found["reference_frames"] = np.array(
            of_step.integers(SHORTEST_FRAMES, LONGEST_FRAMES + 1), np.int32
        )
        others = len(ids) - (clip_id in ids)
        # The last value of the layout is the option for coqui-tts's masking: coqui-tts always
        # conditions on a part of the clip itself.
        if others == 0 or bool(own["layout"][-1]):
            return found | _part_of_itself(own["reference"], int(found["reference_frames"]), rng)
        mels = (features[name]["reference"] for name in _order(ids, clip_id, rng))
        reference = _join(mels, LONGEST_FRAMES, rng)
        return found | {"reference": reference, "masked": np.zeros(2, np.int32)}

    return draw


def fixed_reference(mels: Sequence[np.ndarray], frames: int) -> np.ndarray:
    """Join mels (M, T_mel) and repeat them as often as needed for (M, frames)."""
    joined = np.concatenate(list(mels), axis=1)
    repeats = -(-frames // joined.shape[1])
    return np.tile(joined, (1, repeats))[:, :frames]


def _order(ids: Sequence[str], clip_id: str, rng: np.random.Generator) -> list[str]:
    """Return other clips, starting at a random one."""
    # 64 clips of 0.5 s are more than any reference needs; shuffling all ids would be slow.
    first = int(rng.integers(len(ids)))
    turned = [ids[(first + place) % len(ids)] for place in range(min(len(ids), 64))]
    return [name for name in turned if name != clip_id] or [
        name for name in ids if name != clip_id
    ][:1]


def _join(mels: Iterable[np.ndarray], frames: int, rng: np.random.Generator) -> np.ndarray:
    """Join random parts of mels (M, T_mel) to (M, frames)."""
    pieces, missing = [], frames
    for mel in mels:
        start = int(rng.integers(0, max(1, mel.shape[1] - missing + 1)))
        pieces.append(mel[:, start : start + missing])
        missing -= pieces[-1].shape[1]
        if missing <= 0:
            break
    return fixed_reference(pieces, frames)


def _part_of_itself(mel: np.ndarray, frames: int, rng: np.random.Generator) -> Features:
    """Return at most half of a mel (M, T_mel) as reference, and the range of its codes."""
    length = max(1, min(frames, mel.shape[1] // 2))
    start = int(rng.integers(0, mel.shape[1] - length + 1))
    # Rounded outwards: a code that the reference covers partly is left out too.
    masked = [start // _FRAMES_A_CODE, -(-(start + length) // _FRAMES_A_CODE)]
    reference = fixed_reference([mel[:, start : start + length]], LONGEST_FRAMES)
    return {"reference": reference, "masked": np.array(masked, np.int32)}

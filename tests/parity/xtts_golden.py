"""Golden numbers of the original XTTS v2: how a tensor is written down and compared."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.models.xtts.dvae import random_dvae_state
from trainer.models.xtts.network import XttsGpt
from trainer.models.xtts.sizes import Sizes
from trainer.models.xtts.speaker_encoder import random_speaker_state
from trainer.models.xtts.vocoder import random_vocoder_state

try:
    from parity.xtts_inputs import draw, is_fixed
except ModuleNotFoundError:  # run as a script, whose folder is on the path instead
    from xtts_inputs import draw, is_fixed

GOLDEN = Path(__file__).parent.parent / "golden" / "xtts.json"
_NUM_FIRST = 4


def summarise(name: str, value: Tensor) -> Any:
    """Write down codes whole, and of other tensors the shape, two numbers and the first values.

    The two numbers are the length of the tensor and its product with a direction drawn from its
    name, so that no change of one value goes unseen.
    """
    if not value.is_floating_point():
        return value.flatten().tolist()
    if value.dim() == 0:
        return value.item()
    if value.isinf().any():
        # Codes that cannot be drawn have no score.
        return [[int(code) for code in row.isfinite().nonzero()] for row in value]
    flat = value.double().flatten()
    direction = draw(name, flat.shape).double()
    numbers = [flat.norm(), flat @ direction / direction.norm(), *flat[:_NUM_FIRST]]
    return {"shape": list(value.shape), "numbers": [float(f"{number:.9g}") for number in numbers]}


def deviation(name: str, value: Tensor, golden: Any) -> float:
    """Return how far a tensor is from what was written down, relative to its length."""
    found = summarise(name, value)
    if isinstance(golden, float):
        return abs(found - golden) / abs(golden)
    if isinstance(golden, list):
        return 0.0 if found == golden else float("inf")
    if found["shape"] != golden["shape"]:
        return float("inf")
    ours, theirs = torch.tensor(found["numbers"]), torch.tensor(golden["numbers"])
    return float((ours - theirs).abs().max() / theirs[0])


def published_shapes(part: str) -> dict[str, tuple[int, ...]]:
    """Return keys and shapes of a part of our networks at the published size."""
    sizes, generator = Sizes(), torch.Generator().manual_seed(0)
    if part == "gpt":
        with torch.device("meta"):
            state = XttsGpt(sizes.gpt).state_dict()
    elif part == "dvae":
        state = random_dvae_state(sizes.dvae, generator)
    elif part == "vocoder":
        state = random_vocoder_state(sizes.vocoder, generator)
    else:
        state = random_speaker_state(sizes.speaker, generator)
    prefixes = ("waveform_decoder.", "speaker_encoder.")
    return {_without(key, prefixes): tuple(value.shape) for key, value in state.items()}


def _without(key: str, prefixes: tuple[str, ...]) -> str:
    for prefix in prefixes:
        key = key.removeprefix(prefix)
    return key


__all__ = ["GOLDEN", "deviation", "is_fixed", "published_shapes", "summarise"]

"""Golden numbers of the original XTTS v2: how a tensor is written down and compared."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.models.xtts.network.dvae import random_dvae_state
from trainer.models.xtts.network.gpt import XttsGpt
from trainer.models.xtts.network.sizes import Sizes
from trainer.models.xtts.network.speaker_encoder import random_speaker_state
from trainer.models.xtts.network.vocoder import random_vocoder_state

try:
    from tests.parity.xtts_inputs import draw
except ModuleNotFoundError:  # run as a script, whose folder is on the path instead
    from xtts_inputs import draw

_LARGE = ("codes.full", "vocoder.full", "speaker.full")
GOLDEN = Path(__file__).parent.parent / "golden" / "xtts.json"
_NUM_FIRST = 4

LIMITS = {
    "mel.": 1e-5,
    "conditioning": 1e-5,
    "latents": 1e-5,
    "training.": 1e-5,
    "masked.": 1e-5,
    "visible_stop.": 1e-5,
    "generation.": 0.0,
    "generation.scores": 1e-5,
    "codes.": 0.0,
    "vocoder.": 1e-4,
    "speaker.": 1e-5,
}
"""How far values whose names start so may be from the original's, relative to the largest."""


def limit(name: str) -> float:
    """Return the limit of a value: that of the longest start its name has."""
    return LIMITS[max((start for start in LIMITS if name.startswith(start)), key=len)]


def write_golden(expected: dict[str, Tensor], facts: dict[str, Any], command: str) -> None:
    """Write down what the original computes with the small networks, one value a line."""
    parts = {
        "what": "What the original computes with a small XTTS v2; weights: parity/xtts_inputs.py",
        "made_with": facts["versions"],
        "command": command,
        "shapes": facts["shapes"],
    }
    head = json.dumps(parts, indent=1).removesuffix("\n}")
    values = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(summarise(name, value))}"
        for name, value in sorted(expected.items())
        if not name.startswith(_LARGE)
    )
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(f'{head},\n "values": {{\n{values}\n }}\n}}\n', encoding="utf-8")


def read_golden() -> dict[str, Any]:
    """Return what `write_golden` wrote."""
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def deviations(found: dict[str, Tensor], values: dict[str, Any]) -> dict[str, float]:
    """Return the values that are further from the golden ones than their limit allows."""
    distances = {name: deviation(name, value, values[name]) for name, value in found.items()}
    return {name: value for name, value in distances.items() if not value <= limit(name)}


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
    rounded = [float(f"{number:.9g}") for number in numbers]
    return {"shape": list(value.shape), "numbers": rounded}


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

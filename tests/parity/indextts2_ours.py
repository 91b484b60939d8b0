"""Our half of the comparison with IndexTTS-2, and how its golden numbers are kept."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainer.core.types import Batch
from trainer.models.indextts2.checkpoint.shapes import sizes_of
from trainer.models.indextts2.network.codec import make_codec
from trainer.models.indextts2.network.gpt import UnifiedVoice
from trainer.models.indextts2.network.sizes import Sizes
from trainer.models.indextts2.training.batches import collate, counts, layout_of
from trainer.models.indextts2.training.filterbank import filterbank
from trainer.models.indextts2.training.losses import losses

try:
    from tests.parity import indextts2_inputs as inputs
    from tests.parity.xtts_golden import deviation
    from tests.parity.xtts_inputs import unpack
except ModuleNotFoundError:  # run as a script, whose folder is on the path instead
    import indextts2_inputs as inputs
    from xtts_golden import deviation
    from xtts_inputs import unpack

_NOISE = 1e-3
"""Gradients of this size are differences of others a hundred times as large, or should be 0."""

GOLDEN = Path(__file__).parent.parent / "golden" / "indextts2.json"
LIMITS = {"codec.": 0.0, "filterbank.": 2e-5, "": 1e-5}
"""How far values whose names start so may be from the original's, relative to their length."""


def limit(name: str) -> float:
    """Return the limit of a value: that of the longest start its name has."""
    return LIMITS[max((start for start in LIMITS if name.startswith(start)), key=len)]


def read_golden() -> dict[str, Any]:
    """Return what compare_indextts2.py wrote."""
    return json.loads(GOLDEN.read_text(encoding="utf-8"))


def deviations(found: dict[str, Tensor], values: dict[str, Any]) -> dict[str, float]:
    """Return the values that are further from the golden ones than their limit allows."""
    distances = {name: _deviation(name, value, values[name]) for name, value in found.items()}
    return {name: value for name, value in distances.items() if not value <= limit(name)}


def difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two tensors of one shape, relative to the largest value."""
    if found.shape != expected.shape:
        return float("inf")
    largest = float(expected.double().abs().max())
    distance = float((found.double() - expected.double()).abs().max())
    return distance / max(largest, _NOISE)


def _deviation(name: str, value: Tensor, golden: Any) -> float:
    distance = deviation(name, value, golden)
    if not isinstance(golden, dict):
        return distance
    length = golden["numbers"][0]
    return distance * length / max(length, _NOISE)


def published_shapes() -> dict[str, tuple[int, ...]]:
    """Return keys and shapes of our network at the published size."""
    with torch.device("meta"):
        state = UnifiedVoice(Sizes(), with_conditioning=True).state_dict()
    return {name: tuple(value.shape) for name, value in state.items()}


def make_model(shapes: dict[str, Any]) -> UnifiedVoice:
    """Return the small network with the drawn weights, in eval mode."""
    drawn = inputs.weights(unpack(shapes))
    model = UnifiedVoice(sizes_of(drawn, inputs.GPT), with_conditioning=True)
    model.load_state_dict(model.state_dict() | drawn)
    return model.eval()


def compute(model: UnifiedVoice) -> dict[str, Tensor]:
    """Return every value that the original's side writes of its GPT."""
    features, lengths = inputs.features()
    valid = torch.arange(features.shape[1])[None] < lengths[:, None]
    with torch.no_grad():
        condition, emotion = model.voice(features, valid)
    found = {"voice.condition": condition, "voice.emotion": emotion}
    return found | training(model, from_features=False) | training(model, from_features=True)


def training(model: UnifiedVoice, *, from_features: bool) -> dict[str, Tensor]:
    """Return both losses over both clips in one batch, and the gradients of their weighted sum."""
    clips = _clips(model, from_features)
    totals = {name: sum(counts(clip)[name] for clip in clips) for name in ("text", "audio")}
    model.zero_grad()
    parts = losses(model, Batch(collate(clips), ["a", "b"], totals, 1.0))
    sum(parts.values(), torch.zeros(())).backward()
    name = "trained" if from_features else "training"
    weights = model.loss_weights
    found = {
        f"{name}.loss.text": parts["text_ce"].detach() / weights["text_ce"],
        f"{name}.loss.audio": parts["mel_ce"].detach() / weights["mel_ce"],
    }
    gradients = {
        f"{name}.gradient.{key}": value.grad
        for key, value in model.named_parameters()
        if value.grad is not None
    }
    return found | gradients


def compute_front_ends() -> dict[str, Tensor]:
    """Return the codes of the small codec and the filterbanks of both waves."""
    found = {
        f"filterbank.{len(wave)}": torch.from_numpy(filterbank(wave)) for wave in inputs.waves()
    }
    codec = make_codec(inputs.weights(codec_shapes()), Path("drawn"))
    return found | {"codec.codes": codec(inputs.codec_features()).flatten()}


def codec_shapes() -> dict[str, tuple[int, ...]]:
    """Return the published keys of the small codec's encoder, weight norm not folded."""
    sizes = inputs.CODEC
    width, hidden, inner = sizes["vocos_dim"], sizes["hidden_size"], sizes["vocos_intermediate_dim"]
    project = "quantizer.quantizers.0.in_project"
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.0.embed.weight": (width, hidden, 7),
        "encoder.0.embed.bias": (width,),
        "encoder.1.weight": (hidden, width),
        "encoder.1.bias": (hidden,),
        f"{project}.weight_g": (sizes["codebook_dim"], 1, 1),
        f"{project}.weight_v": (sizes["codebook_dim"], hidden, 1),
        f"{project}.bias": (sizes["codebook_dim"],),
        "quantizer.quantizers.0.codebook.weight": (sizes["codebook_size"], sizes["codebook_dim"]),
    }
    for name in ("norm", "final_layer_norm"):
        shapes |= {f"encoder.0.{name}.{end}": (width,) for end in ("weight", "bias")}
    for block in range(sizes["vocos_num_layers"]):
        start = f"encoder.0.convnext.{block}"
        shapes |= {
            f"{start}.gamma": (width,),
            f"{start}.dwconv.weight": (width, 1, 7),
            f"{start}.dwconv.bias": (width,),
            f"{start}.norm.weight": (width,),
            f"{start}.norm.bias": (width,),
            f"{start}.pwconv1.weight": (inner, width),
            f"{start}.pwconv1.bias": (inner,),
            f"{start}.pwconv2.weight": (width, inner),
            f"{start}.pwconv2.bias": (width,),
        }
    return shapes


def _clips(model: UnifiedVoice, from_features: bool) -> list[dict[str, Any]]:
    features, lengths = inputs.features()
    width = inputs.GPT["model_dim"]
    condition, emotion = (
        inputs.draw("condition", (2, 32, width)),
        inputs.draw("emotion", (2, width)),
    )
    clips = []
    for row, (ids, codes) in enumerate(zip(inputs.TEXTS, inputs.CODES, strict=True)):
        clip = {
            "tokens": torch.tensor(ids).numpy(),
            "codes": torch.tensor(codes).numpy(),
            "layout": layout_of(model.sizes),
        }
        if from_features:
            clip["reference"] = features[row, : int(lengths[row])].numpy()
        else:
            clip |= {"condition": condition[row].numpy(), "emotion": emotion[row].numpy()}
        clips.append(clip)
    return clips

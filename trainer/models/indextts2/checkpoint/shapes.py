"""Derive the sizes of a base from its weights, and reject weights of other models."""

from collections.abc import Set as AbstractSet

import torch
from torch import Tensor

from trainer.core.errors import CheckpointError
from trainer.models._json import Json
from trainer.models._weights import describe_mismatch, shapes_of
from trainer.models.indextts2.network.gpt import CONDITIONING, UnifiedVoice
from trainer.models.indextts2.network.sizes import ConformerSizes, Sizes

State = dict[str, Tensor]

# Its projection of a speaker vector, and its table of languages.
_ONLY_IN_25 = ("spk_emb_proj.", "lang_embedding.")


def is_conditioning(name: str) -> bool:
    """Return whether a tensor belongs to the conditioning, which encodes references."""
    return name.split(".")[0] in CONDITIONING


def refuse_other_versions(names: AbstractSet[str], config: Json) -> None:
    """Reject weights of IndexTTS-2.5 and 1.5.

    Raises:
        CheckpointError: the names or the configuration belong to one of them.
    """
    version = str(config.get("version", "2.0"))
    if version.startswith("2.5") or any(name.startswith(_ONLY_IN_25) for name in names):
        raise CheckpointError(
            "This is IndexTTS-2.5, which conditions on a speaker vector and a language, has "
            "another tokenizer and 25 codes per second. Timbre trains IndexTTS-2.0; choose the "
            "folder published as IndexTTS-2."
        )
    if names and not any(name.startswith("emo_perceiver_encoder.") for name in names):
        raise CheckpointError(
            "These weights have no emotion branch (emo_perceiver_encoder), so they are not those "
            "of IndexTTS-2, but perhaps of IndexTTS 1.5. Choose the folder published as IndexTTS-2."
        )


def sizes_of(state: State, config: Json) -> Sizes:
    """Derive the sizes from the shapes; `config` is the section `gpt` of config.yaml.

    Raises:
        CheckpointError: a weight that determines a size is missing.
    """
    try:
        num_text_tokens, width = state["text_embedding.weight"].shape
        num_audio_tokens = len(state["mel_embedding.weight"])
        heads = config.get("heads")
        # Before the gate, the layer has twice the inner width.
        inner = state["perceiver_encoder.layers.0.1.0.bias"].shape[0] // 2
        return Sizes(
            layers=_count(state, "gpt.h."),
            width=width,
            # The shapes do not tell the number of heads; the published heads are 64 wide.
            heads=heads if isinstance(heads, int) else max(1, width // 64),
            num_text_tokens=num_text_tokens,
            num_audio_tokens=num_audio_tokens,
            start_text=int(config.get("start_text_token", 0)),
            stop_text=int(config.get("stop_text_token", 1)),
            start_audio=int(config.get("start_mel_token", num_audio_tokens - 2)),
            stop_audio=int(config.get("stop_mel_token", num_audio_tokens - 1)),
            max_text_tokens=len(state["text_pos_embedding.emb.weight"]) - 2,
            max_audio_tokens=len(state["mel_pos_embedding.emb.weight"]) - 3,
            num_latents=len(state["perceiver_encoder.latents"]),
            feature_width=_feature_width(state, "conditioning_encoder"),
            emotion_width=state["emo_perceiver_encoder.latents"].shape[1],
            perceiver_layers=_count(state, "perceiver_encoder.layers."),
            # The inverse of `_inner` of the network.
            perceiver_mult=max(1, round(inner * 3 / (2 * width))),
            speaker=_conformer(state, "conditioning_encoder"),
            emotion=_conformer(state, "emo_conditioning_encoder"),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise CheckpointError(
            f"The weights have no {error}, which IndexTTS-2 needs. Choose the published gpt.pth, "
            "or one that was trained from it."
        ) from None


def check_state(shapes: dict[str, tuple[int, ...]], sizes: Sizes) -> None:
    """Check that the tensors are exactly those of a network with these sizes.

    Raises:
        CheckpointError: tensors are missing, unexpected or of another shape; the message says
            which.
    """
    if sizes.width % sizes.heads:
        raise CheckpointError(
            f"The GPT is {sizes.width} wide, which is not divisible by {sizes.heads} heads. Copy "
            "the config.yaml that was published with the model beside it."
        )
    # Only shapes are compared, so the weights need no memory.
    with torch.device("meta"):
        model = UnifiedVoice(sizes, with_conditioning=True)
    if misfit := describe_mismatch(shapes, shapes_of(model.state_dict())):
        raise CheckpointError(
            f"The weights do not match IndexTTS-2 ({misfit}). Download gpt.pth again, or choose "
            "the published one."
        )


def _conformer(state: State, name: str) -> ConformerSizes:
    heads, head_width = state[f"{name}.encoders.0.self_attn.pos_bias_u"].shape
    return ConformerSizes(
        width=heads * head_width,
        blocks=_count(state, f"{name}.encoders."),
        heads=heads,
        inner=len(state[f"{name}.encoders.0.feed_forward.w_1.bias"]),
    )


def _feature_width(state: State, name: str) -> int:
    """Return the width of the features, from the outputs of the stride-2 convolution.

    An odd width is rounded up, because the shapes are the same.
    """
    width, inputs = state[f"{name}.embed.out.0.weight"].shape
    places = inputs // width
    # places = (feature_width - 1) // 2; both widths in use, 1024 and 160, are even.
    return 2 * places + 2


def _count(state: State, start: str) -> int:
    return len({name[len(start) :].split(".")[0] for name in state if name.startswith(start)})

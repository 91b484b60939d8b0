"""What the weights of a base tell about its sizes, and whether they are IndexTTS-2's at all."""

from typing import Any

import torch
from torch import Tensor

from trainer.errors import CheckpointError
from trainer.models._weights import describe_misfit, shapes_of
from trainer.models.indextts2.network import CONDITIONING, UnifiedVoice
from trainer.models.indextts2.sizes import ConformerSizes, Sizes

State = dict[str, Tensor]

_ONLY_IN_25 = ("spk_emb_proj.", "lang_embedding.")


def is_conditioning(name: str) -> bool:
    """Whether a tensor belongs to what turns a reference into a voice."""
    return name.split(".")[0] in CONDITIONING


def refuse_other_versions(names: "set[str] | dict[str, Any]", config: dict[str, Any]) -> None:
    """Recognise IndexTTS-2.5 and 1.5.

    Raises:
        CheckpointError: it is one of them.
    """
    version = str(config.get("version", "2.0"))
    if version.startswith("2.5") or any(name.startswith(_ONLY_IN_25) for name in names):
        raise CheckpointError(
            "This is IndexTTS-2.5, which conditions on a speaker vector and a language, reads "
            "text by another tokenizer and has 25 codes a second. Timbre trains IndexTTS-2.0: "
            "give the folder published as IndexTTS-2."
        )
    if names and not any(name.startswith("emo_perceiver_encoder.") for name in names):
        raise CheckpointError(
            "These weights have no emotion branch (emo_perceiver_encoder), so they are not "
            "IndexTTS-2's; IndexTTS 1.5 has none. Give the folder published as IndexTTS-2."
        )


def sizes_of(state: State, config: dict[str, Any]) -> Sizes:
    """Read the sizes off the shapes; `config` is the section gpt of config.yaml.

    Raises:
        CheckpointError: a weight that tells them is absent.
    """
    try:
        num_text_tokens, width = state["text_embedding.weight"].shape
        num_audio_tokens = len(state["mel_embedding.weight"])
        heads = config.get("heads")
        inner = state["perceiver_encoder.layers.0.1.0.bias"].shape[0] // 2
        return Sizes(
            layers=_count(state, "gpt.h."),
            width=width,
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
            perceiver_mult=max(1, round(inner * 3 / (2 * width))),
            speaker=_conformer(state, "conditioning_encoder"),
            emotion=_conformer(state, "emo_conditioning_encoder"),
        )
    except (KeyError, ValueError, IndexError) as error:
        raise CheckpointError(
            f"The weights lack {error}, which IndexTTS-2 has. Give the gpt.pth published with it, "
            "or one that was trained from it."
        ) from None


def check_state(shapes: dict[str, tuple[int, ...]], sizes: Sizes) -> None:
    """Require exactly the tensors of these sizes.

    Raises:
        CheckpointError: tensors are missing, left over or of another shape; it names them.
    """
    if sizes.width % sizes.heads:
        raise CheckpointError(
            f"The GPT is {sizes.width} wide, which {sizes.heads} heads cannot share. Copy the "
            "config.yaml that was published with the model beside it."
        )
    with torch.device("meta"):
        model = UnifiedVoice(sizes, with_conditioning=True)
    if misfit := describe_misfit(shapes, shapes_of(model.state_dict())):
        raise CheckpointError(
            f"The weights do not fit IndexTTS-2 ({misfit}). Download gpt.pth again, or take the "
            "one that was published."
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
    """Return the width of the features, odd ones rounded up: the front has one place for two."""
    width, inputs = state[f"{name}.embed.out.0.weight"].shape
    places = inputs // width
    # 1024, as published, and 160 both have one column that no window starts at.
    return 2 * places + 2


def _count(state: State, start: str) -> int:
    return len({name[len(start) :].split(".")[0] for name in state if name.startswith(start)})

"""Derive the sizes of a base from its files, and check that the files belong together."""

import json
import re
from pathlib import Path

import torch
from torch import Tensor

from trainer.core.errors import CheckpointError
from trainer.models._json import Json
from trainer.models._layers.perceiver import HEAD_WIDTH
from trainer.models._weights import describe_mismatch, shapes_of
from trainer.models.xtts.network.dvae import dvae_sizes, load_dvae
from trainer.models.xtts.network.gpt import XttsGpt
from trainer.models.xtts.network.sizes import DvaeSizes, GptSizes, Sizes
from trainer.models.xtts.network.speaker_encoder import load_speaker_encoder, speaker_sizes
from trainer.models.xtts.network.strict_loading import count_modules, shape_of
from trainer.models.xtts.network.vocoder import load_vocoder, vocoder_sizes

State = dict[str, Tensor]

# Such as [en] or [zh-cn]; tokens with another purpose are in capitals, like [STOP].
_LANGUAGE = re.compile(r"\[([a-z]{2,3}(?:-[a-z]{2})?)\]")


def token_ids(vocab_json: str, path: Path) -> dict[str, int]:
    """Return the id of every token in a vocab.json.

    Raises:
        CheckpointError: it is not a vocabulary, or has no [START] or [STOP].
    """
    try:
        vocab = json.loads(vocab_json)
        ids = {str(token): int(number) for token, number in vocab["model"]["vocab"].items()}
        ids |= {str(token["content"]): int(token["id"]) for token in vocab.get("added_tokens", [])}
        if not {"[START]", "[STOP]"} <= ids.keys():
            raise ValueError("a token is missing")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{path} is not an XTTS vocabulary; expected a tokenizers file with the tokens [START] "
            "and [STOP]. Copy the vocab.json that was published with the model beside it."
        ) from None
    return ids


def languages_of(ids: dict[str, int]) -> list[str]:
    """Return the languages that have a token, in the order of the ids."""
    found = [(number, _LANGUAGE.fullmatch(token)) for token, number in ids.items()]
    return [match.group(1) for _, match in sorted(found, key=lambda pair: pair[0]) if match]


def gpt_sizes(state: State, ids: dict[str, int], config: Json) -> GptSizes:
    """Derive the sizes of a GPT from its shapes; the number of heads comes from the config.

    Raises:
        CheckpointError: a weight that determines a size is missing.
    """
    what = "The GPT of this checkpoint"
    if (
        "conditioning_perceiver.latents" not in state
        and "conditioning_encoder.init.weight" in state
    ):
        raise CheckpointError(
            f"{what} has no perceiver ('conditioning_perceiver.latents' is missing), so it is "
            "XTTS v1. Choose an XTTS v2 folder."
        )
    num_text_tokens, width = shape_of(state, "text_embedding.weight", 2, what)
    num_audio_tokens, _ = shape_of(state, "mel_embedding.weight", 2, what)
    queries = shape_of(state, "conditioning_perceiver.layers.0.0.to_q.weight", 2, what)[0]
    arguments = config.get("model_args")
    heads = arguments.get("gpt_n_heads") if isinstance(arguments, dict) else None
    return GptSizes(
        layers=count_modules(state, "gpt.h.{}."),
        width=width,
        # The published heads are 64 wide.
        heads=heads if isinstance(heads, int) and heads > 0 else max(1, width // 64),
        num_text_tokens=num_text_tokens,
        num_audio_tokens=num_audio_tokens,
        start_text=ids["[START]"],
        stop_text=ids["[STOP]"],
        # Codes, start and stop are rows of the table in this order.
        start_audio=num_audio_tokens - 2,
        stop_audio=num_audio_tokens - 1,
        # The inverse of `text_positions` and `audio_positions`.
        max_text_tokens=shape_of(state, "text_pos_embedding.emb.weight", 2, what)[0] - 2,
        max_audio_tokens=shape_of(state, "mel_pos_embedding.emb.weight", 2, what)[0] - 3,
        n_mels=shape_of(state, "conditioning_encoder.init.weight", 3, what)[1],
        num_latents=shape_of(state, "conditioning_perceiver.latents", 2, what)[0],
        conditioning_layers=count_modules(state, "conditioning_encoder.attn.{}."),
        perceiver_layers=count_modules(state, "conditioning_perceiver.layers.{}."),
        perceiver_heads=max(1, queries // HEAD_WIDTH),
    )


def check_gpt(state: State, sizes: GptSizes) -> None:
    """Check that the weights are exactly those of a GPT with these sizes.

    Raises:
        CheckpointError: weights are missing, unexpected or of another shape; the message says
            which.
    """
    if sizes.width % sizes.heads:
        raise CheckpointError(
            f"The GPT is {sizes.width} wide, which is not divisible by {sizes.heads} heads. Copy "
            "the config.json that was published with the model beside it."
        )
    # Only shapes are compared, so the weights need no memory.
    with torch.device("meta"):
        expected = shapes_of(XttsGpt(sizes).state_dict())
    if misfit := describe_mismatch(shapes_of(state), expected):
        raise CheckpointError(
            f"The GPT does not match XTTS v2 ({misfit}). Download the file again, or choose the "
            "published one."
        )


def check_vocabulary(ids: dict[str, int], sizes: GptSizes, path: Path) -> None:
    """Check that a vocabulary has as many tokens as the model has rows.

    Raises:
        CheckpointError: the vocabulary belongs to another model.
    """
    # Ids may have gaps, so the highest one decides.
    count = max(ids.values()) + 1
    if count != sizes.num_text_tokens:
        raise CheckpointError(
            f"{path} has {count} tokens, but the model needs {sizes.num_text_tokens} (the rows of "
            "its text_embedding.weight). Copy the vocab.json that belongs to this model beside it."
        )


def read_sizes(
    gpt: State, voice: State, dvae: State, *, ids: dict[str, int], config: Json
) -> Sizes:
    """Derive all sizes from the weights of a base, and check that the weights match.

    Without a DVAE, which only training needs, its sizes are the published ones.

    Raises:
        CheckpointError: weights are missing, unexpected, of another shape or of other networks.
    """
    sizes = Sizes(
        gpt_sizes(gpt, ids, config),
        dvae_sizes(dvae) if dvae else DvaeSizes(),
        vocoder_sizes(voice),
        speaker_sizes(voice),
    )
    check_gpt(gpt, sizes.gpt)
    # Loading is strict, so it checks the weights; the networks are not kept.
    load_vocoder(voice, sizes.vocoder)
    load_speaker_encoder(voice, sizes.speaker)
    if dvae:
        load_dvae(dvae, sizes.dvae)
        _check_codes(sizes)
    return sizes


def _check_codes(sizes: Sizes) -> None:
    num_codes = sizes.gpt.num_audio_tokens - 2  # the other two are start and stop
    if sizes.dvae.num_codes != num_codes:
        raise CheckpointError(
            f"The DVAE has {sizes.dvae.num_codes} codes, but the GPT has {num_codes}. Copy the "
            "dvae.pth that was published with this model beside it."
        )

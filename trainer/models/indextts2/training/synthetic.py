"""Synthetic batches for IndexTTS-2: random features and a network without loaded weights.

Memory and speed can be measured with them before there are data or weights.
"""

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.core.specs import Corpus, SyntheticSpec
from trainer.core.types import Clip, Features
from trainer.models._conversion_cache import RANDOM_LICENCE
from trainer.models.indextts2.checkpoint.base_folder import config_of
from trainer.models.indextts2.checkpoint.base_model import FORMAT, open_base_model
from trainer.models.indextts2.checkpoint.weights import network
from trainer.models.indextts2.facts import Facts
from trainer.models.indextts2.network.sizes import (
    CODES_A_SECOND,
    MAX_REFERENCE_S,
    OUTPUT_RATE,
    TINY,
    ConformerSizes,
    Sizes,
)
from trainer.models.indextts2.options import Options
from trainer.models.indextts2.text.tokenizer import ByteTokenizer, make_tokenizer
from trainer.models.indextts2.training.batches import layout_of

TOKENS_A_SECOND = 9.0
"""Text tokens per second of fluent speech: about the syllables and spaces of Korean."""

# The full size is the published one; medium is about half of it in depth and width.
_SIZES = {
    "tiny": replace(TINY, num_text_tokens=ByteTokenizer.size + 1),
    "medium": Sizes(
        layers=12, width=512, heads=8, emotion_width=512,
        speaker=ConformerSizes(width=256, blocks=3, heads=4, inner=1024),
        emotion=ConformerSizes(width=256, blocks=2, heads=4, inner=512),
    ),
    "full": Sizes(),
}  # fmt: skip


def make_synthetic(base: Path | None, options: Options, clips: Sequence[Clip], size: str) -> Corpus:
    """Return what a survey would return for such clips, with random codes and voices.

    With a base, texts are tokenized as in a run, otherwise as bytes; an empty text counts as
    fluent speech.
    """
    start = None if size else open_base_model(base)
    sizes = _SIZES[size] if start is None else start.sizes
    bpe_model = b"" if start is None else start.bpe_model
    # A fixed seed, so that repeated measurements work on the same batch.
    rng = np.random.default_rng(0)
    layout = layout_of(sizes, own_emotion=options.emotion == "own clip")
    features = {
        clip.id: _draw(clip, _count_tokens(clip, bpe_model), sizes, options, rng)
        | {"layout": layout}
        for clip in clips
    }
    facts: Facts = {
        "format": FORMAT,
        "family": "indextts2",
        "sizes": sizes.to_json(),
        "bpe_model": base64.b64encode(bpe_model).decode("ascii"),
        "text_rows": None,
        "config": {"gpt": config_of(sizes), "version": 2.0} if start is None else start.config,
        "speakers": [{"name": "nobody", "language": "ko"}],
        "sample_rate": OUTPUT_RATE,
        "licence": RANDOM_LICENCE if start is None else start.licence,
        "is_random": start is None or start.is_random,
    }
    return Corpus(dict(facts), features)


def _draw(
    clip: Clip, num_tokens: int, sizes: Sizes, options: Options, rng: np.random.Generator
) -> Features:
    # The first convolution of the conditioning needs 3 frames.
    num_frames = max(3, round(clip.duration_s * CODES_A_SECOND))
    num_codes = min(num_frames, sizes.audio_positions - 1)
    num_tokens = min(num_tokens, options.max_text_tokens, sizes.max_text_tokens)
    found = {
        "codes": rng.integers(0, sizes.start_audio, num_codes).astype(np.int16),
        # From 3: the tokens of a text do not include start (0), stop (1) and unknown (2).
        "tokens": rng.integers(3, sizes.num_text_tokens - 1, num_tokens).astype(np.int32),
        "speaker": np.array(0, np.int32),
        "is_pair": np.array(0, np.int8),
    }
    if options.conditioning == "trained":
        heard = min(num_frames, round(MAX_REFERENCE_S * CODES_A_SECOND))
        reference = rng.standard_normal((heard, sizes.feature_width), np.float32)
        return found | {"reference": reference.astype(np.float16)}
    condition = rng.standard_normal((sizes.num_latents, sizes.width), np.float32)
    return found | {
        "condition": condition.astype(np.float16),
        "emotion": rng.standard_normal(sizes.width, np.float32).astype(np.float16),
    }


def _count_tokens(clip: Clip, bpe_model: bytes) -> int:
    if clip.text:
        return max(1, len(make_tokenizer(bpe_model).encode(clip.text)))
    return max(1, round(TOKENS_A_SECOND * clip.duration_s))


SYNTHETIC = SyntheticSpec(
    tuple(_SIZES), longest_s=15.0, make_synthetic=make_synthetic, network=network
)

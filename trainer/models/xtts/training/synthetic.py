"""Synthetic batches for XTTS: random features and a network without loaded weights.

Memory and speed can be measured with them before there are data or weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from trainer.core.errors import DataError
from trainer.core.specs import Corpus, SyntheticSpec
from trainer.core.types import Clip, Features
from trainer.models._conversion_cache import RANDOM_LICENCE
from trainer.models.xtts.checkpoint.base_model import FORMAT, open_base_model
from trainer.models.xtts.checkpoint.random_base import blank_vocab, complete_sizes, config_of
from trainer.models.xtts.facts import Facts
from trainer.models.xtts.inference.voice import SpeakingGpt
from trainer.models.xtts.network.sizes import (
    CODE_STRIDE,
    HOP_LENGTH,
    SAMPLE_RATE,
    TINY,
    GptSizes,
    Sizes,
)
from trainer.models.xtts.options import LAYERS, Options
from trainer.models.xtts.text.tokenizer import XttsTokenizer
from trainer.models.xtts.training.weights import configure

TOKENS_A_SECOND = 13.0
"""Text tokens per second of fluent speech; a clip of 11.6 s then fills a row of 438 positions."""

# The full size is the published one; medium has half its width, and 12 of its 30 layers.
_SIZES = {
    "tiny": TINY.gpt,
    "medium": GptSizes(layers=12, width=512, heads=8, num_text_tokens=0),
    "full": GptSizes(),
}


def make_synthetic(base: Path | None, options: Options, clips: Sequence[Clip], size: str) -> Corpus:
    """Return what a survey would return for such clips, with random codes and mels.

    A text is tokenized as in a run; an empty one counts as fluent speech.
    """
    vocab = open_base_model(base).vocab_json if base or not size else blank_vocab()
    sizes = _sizes_of(base, options, vocab, size)
    tokenizer = XttsTokenizer(vocab, amharic_g2p=options.amharic_g2p)
    gpt = sizes.gpt
    layout = [gpt.start_text, gpt.stop_text, gpt.start_audio, gpt.stop_audio, gpt.num_latents]
    # A fixed seed, so that repeated measurements work on the same batch.
    rng = np.random.default_rng(0)
    features = {
        clip.id: _draw(clip, tokenizer, gpt, rng)
        | {"layout": np.array([*layout, options.upstream_masking], np.int32)}
        for clip in clips
    }
    facts: Facts = {
        "format": FORMAT,
        "family": "xtts",
        "sizes": sizes.to_json(),
        "vocab": vocab,
        "related": {},
        "amharic_g2p": options.amharic_g2p,
        "config": config_of(sizes),
        "speakers": [{"name": "nobody", "languages": ["en"], "references": []}],
        "licence": RANDOM_LICENCE,
    }
    return Corpus(dict(facts), features)


def network(options: Options, facts: Facts) -> nn.Module:
    """Return the network that `load` would fill; its weights depend on the current device."""
    model = SpeakingGpt(Sizes.from_json(facts["sizes"]).gpt, options.dropout)
    configure(model, options)
    return model


def _sizes_of(base: Path | None, options: Options, vocab: str, size: str) -> Sizes:
    if size:
        # Only the GPT trains, so the other networks may stay tiny.
        sizes = replace(TINY, gpt=_SIZES[size])
        return sizes if sizes.gpt.num_text_tokens else complete_sizes(sizes, vocab)
    sizes = open_base_model(base).sizes
    layers = LAYERS.get(options.size, sizes.gpt.layers)
    return replace(sizes, gpt=replace(sizes.gpt, layers=layers))


def _draw(
    clip: Clip, tokenizer: XttsTokenizer, sizes: GptSizes, rng: np.random.Generator
) -> Features:
    num_samples = round(clip.duration_s * SAMPLE_RATE)
    # Rounded up, because the last code of a clip is usually not full.
    num_codes = min(-(-num_samples // CODE_STRIDE), sizes.max_audio_tokens - 1)
    num_frames = num_samples // HOP_LENGTH + 1
    mel = rng.standard_normal((sizes.n_mels, num_frames), np.float32)
    num_tokens = min(_count_tokens(clip, tokenizer), sizes.max_text_tokens)
    return {
        "codes": rng.integers(0, sizes.start_audio, num_codes).astype(np.int16),
        "reference": mel.astype(np.float16),
        # From 1: the tokens of a text do not include stop (0).
        "tokens": rng.integers(1, sizes.num_text_tokens, num_tokens).astype(np.int32),
        "speaker": np.array(0, np.int32),
    }


def _count_tokens(clip: Clip, tokenizer: XttsTokenizer) -> int:
    try:
        return len(tokenizer.encode(clip.text, clip.language)) if clip.text else _typical(clip)
    except DataError:
        # The vocabulary lacks the language; a run would first add it, letter by letter.
        return len(clip.text) + 1


def _typical(clip: Clip) -> int:
    return max(1, round(TOKENS_A_SECOND * clip.duration_s))


SYNTHETIC = SyntheticSpec(
    tuple(_SIZES), longest_s=11.6, make_synthetic=make_synthetic, network=network
)

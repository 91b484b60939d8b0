"""Synthetic batches for FastSpeech 2: random features and a network without loaded weights.

Memory and speed can be measured with them before there is any data.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from trainer.core.specs import Corpus, SyntheticSpec
from trainer.core.types import Clip, Features
from trainer.models._layers.mel import MelSettings
from trainer.models.fastspeech2 import tokens
from trainer.models.fastspeech2.checkpoint.published import unmeasured_voice
from trainer.models.fastspeech2.checkpoint.weights import load, read_base
from trainer.models.fastspeech2.facts import Facts
from trainer.models.fastspeech2.network import sizes_of
from trainer.models.fastspeech2.options import Options
from trainer.models.fastspeech2.training.survey import write_facts

_SYMBOLS_A_SECOND = 14.0  # letters of fluent English; chosen by hand
_NUM_SYMBOLS = 60  # about what a language with an alphabet needs; chosen by hand


def make_synthetic(base: Path | None, options: Options, clips: Sequence[Clip], size: str) -> Corpus:
    """Return what a survey would return for such clips, with random mels of the right lengths.

    A text counts one token per letter; an empty one counts as fluent speech.
    """
    options = replace(options, size=size) if size else options
    sizes = sizes_of(options.size, options.blocks, options.dropout)
    symbols = [*tokens.SPECIALS, *(f"{number}" for number in range(_NUM_SYMBOLS))]
    voices = [unmeasured_voice("nobody")]
    if base is not None:
        known = read_base(base)[0]
        symbols, voices = known["symbols"], known["speakers"]
    facts = write_facts(options, sizes, symbols, voices)
    facts |= {"pitch_range": [-4.0, 4.0], "energy_range": [-4.0, 6.0]}
    rng = np.random.default_rng(0)
    features = {clip.id: _draw(clip, len(symbols), rng) for clip in clips}
    return Corpus(dict(facts), features)


def network(options: Options, facts: Facts) -> nn.Module:
    """Return the network that `load` would return, with weights that are not loaded."""
    return load(None, options, facts)


def _draw(clip: Clip, num_symbols: int, rng: np.random.Generator) -> Features:
    settings = MelSettings()
    num_frames = max(4, round(clip.duration_s * settings.sample_rate) // settings.hop_length)
    typical = round(_SYMBOLS_A_SECOND * clip.duration_s)
    # Two sentence marks join the letters, and every token needs a frame.
    num_tokens = min(max(3, len(clip.text) + 2 if clip.text else typical), num_frames)
    edges = np.linspace(0, num_frames, num_tokens + 1).round().astype(np.int32)
    return {
        "mel": rng.standard_normal((num_frames, settings.n_mels), np.float32),
        "tokens": rng.integers(1, num_symbols, num_tokens).astype(np.int32),
        "durations": np.diff(edges),
        "pitch": rng.standard_normal(num_tokens, np.float32),
        "energy": rng.standard_normal(num_tokens, np.float32),
        "speaker": np.array(0, np.int32),
    }


SYNTHETIC = SyntheticSpec(
    ("small", "standard"), longest_s=12.0, make_synthetic=make_synthetic, network=network
)

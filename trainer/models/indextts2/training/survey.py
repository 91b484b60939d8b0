"""Survey all clips at once: their tokens, the speakers and the rows of the text tables."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.core.errors import CheckpointError, DataError
from trainer.core.specs import Corpus, Progress
from trainer.core.types import Clip, Features
from trainer.models._survey import number_speakers, read_clips
from trainer.models.indextts2.checkpoint.base_folder import Base
from trainer.models.indextts2.checkpoint.base_model import FORMAT, open_base_model
from trainer.models.indextts2.facts import Facts
from trainer.models.indextts2.network.codec import CODEC_LICENCE
from trainer.models.indextts2.network.sizes import OUTPUT_RATE, Sizes
from trainer.models.indextts2.options import Options
from trainer.models.indextts2.text.tokenizer import UNKNOWN, make_tokenizer, related_rows
from trainer.models.indextts2.training.batches import layout_of


def survey(
    features: dict[str, Features],
    clips: Sequence[Clip],
    options: Options,
    base: Path | None,
    progress: Progress,
) -> Corpus:
    """Tokenize every clip, number the speakers and map the text tables.

    Raises:
        DataError: no train clip is usable.
        CheckpointError: the base or the bpe.model cannot be used.
        MissingDependency: text has to be tokenized, but sentencepiece is not installed.
    """
    start = open_base_model(base)
    bpe_model = read_bpe(start, options)
    is_new = bpe_model != start.bpe_model
    # Upstream's text tables have one row more than the tokenizer has tokens.
    num_tokens = make_tokenizer(bpe_model).size + 1 if is_new else start.sizes.num_text_tokens
    sizes = replace(start.sizes, num_text_tokens=num_tokens)
    reader = _Reader(bpe_model, sizes, options)
    ready, unusable = read_clips(
        clips, lambda clip: reader.read(clip, features[clip.id]), "IndexTTS-2", progress
    )
    used = [clip for clip in clips if clip.id in ready]
    names = number_speakers(used, ready)
    # MaskGCT's licence applies if clips went through its codec; a random base has its own.
    has_audio = not start.is_random and any(not clip.arrays for clip in used)
    # Reversed, so that the first clip of a speaker decides.
    languages = {clip.speaker: clip.language for clip in reversed(used)}
    facts: Facts = {
        "format": FORMAT,
        "family": "indextts2",
        "sizes": sizes.to_json(),
        "bpe_model": base64.b64encode(bpe_model).decode("ascii"),
        "text_rows": related_rows(start.bpe_model, bpe_model) if is_new else None,
        "config": start.config,
        "speakers": [{"name": name, "language": languages[name]} for name in names],
        "sample_rate": OUTPUT_RATE,
        "licence": f"{start.licence} {CODEC_LICENCE}" if has_audio else start.licence,
        "is_random": start.is_random,
    }
    return Corpus(dict(facts), ready, unusable)


class _Reader:
    """Tokenizes clips, or says why one cannot be used."""

    def __init__(self, bpe_model: bytes, sizes: Sizes, options: Options) -> None:
        self.bpe_model = bpe_model
        self.sizes = sizes
        self.options = options
        # The same for all clips; `collate` gets nothing but clips, so each of them carries it.
        self.layout = layout_of(sizes, own_emotion=options.emotion == "own clip")

    def read(self, clip: Clip, raw: Features) -> Features:
        """Return the features of a clip, ready for training.

        Raises:
            DataError: the clip has to be left out.
        """
        # The start code takes one position; the stop code is only a target.
        most_codes = self.sizes.audio_positions - 1
        if len(raw["codes"]) > most_codes:
            raise DataError(
                f"it has {len(raw['codes'])} codes; IndexTTS-2 accepts at most {most_codes}. Split "
                "the clip."
            )
        # Given ids may come from another bpe.model, so the option can have the text read again.
        is_given = "text_ids" in raw and self.options.text_ids == "as given"
        tokens = self._given(raw["text_ids"]) if is_given else self._encode(clip.text)
        most = min(self.options.max_text_tokens, self.sizes.max_text_tokens)
        if not 0 < len(tokens) <= most:
            raise DataError(
                f"its text has {len(tokens)} tokens; expected 1 to {most}. Split the clip, or "
                "correct its text."
            )
        found = {name: value for name, value in raw.items() if name != "text_ids"}
        return found | {"tokens": tokens, "layout": self.layout}

    def _given(self, ids: np.ndarray) -> np.ndarray:
        last = self.sizes.num_text_tokens - 2  # the tables have one row more than there are tokens
        if len(ids) and (ids.min() < UNKNOWN or ids.max() > last):
            raise DataError(
                f"its text_ids are not between {UNKNOWN} and {last}. Set 'Other bpe.model' to the "
                "model that they were made with."
            )
        if self.options.unknown_tokens == "leave out" and UNKNOWN in ids:
            raise DataError(
                "its text_ids contain the unknown token, because its bpe.model lacks a letter. "
                "Change the text, or keep clips with unknown letters."
            )
        return ids.astype(np.int32)

    def _encode(self, text: str) -> np.ndarray:
        tokenizer = make_tokenizer(self.bpe_model)
        unknown = tokenizer.unknown(text)
        if unknown and self.options.unknown_tokens == "leave out":
            listed = " ".join(dict.fromkeys(unknown))[:60]
            raise DataError(
                f"the bpe.model has no token for {listed}. Change the text, choose another "
                "bpe.model, or keep clips with unknown letters."
            )
        return np.array(tokenizer.encode(text), np.int32)


def read_bpe(start: Base, options: Options) -> bytes:
    """Return the bpe.model for texts: the one set in the options, or that of the base.

    Raises:
        CheckpointError: the file in the options cannot be read.
    """
    if not options.bpe_model:
        return start.bpe_model
    try:
        return Path(options.bpe_model).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{options.bpe_model} cannot be read: {error.strerror}. Choose a bpe.model, or leave "
            "the option empty."
        ) from None

"""What IndexTTS-2 learns of a manifest as a whole: its tokens, speakers and text tables."""

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainer.data.types import Clip, Features
from trainer.errors import CheckpointError, DataError
from trainer.models._surveying import number_speakers, read_clips
from trainer.models.indextts2.batches import layout_of
from trainer.models.indextts2.codec import CODEC_LICENCE
from trainer.models.indextts2.folder import Base
from trainer.models.indextts2.options import Options
from trainer.models.indextts2.sizes import OUTPUT_RATE, Sizes
from trainer.models.indextts2.start import FORMAT, open_start
from trainer.models.indextts2.tokenizer import UNKNOWN, make_tokenizer, related_rows
from trainer.specs import Corpus, Progress


def survey(
    features: dict[str, Features],
    clips: Sequence[Clip],
    options: Options,
    base: Path | None,
    progress: Progress,
) -> Corpus:
    """Give every clip its tokens.

    Raises:
        DataError: no train clip is usable.
        CheckpointError: the base or the bpe.model cannot be used.
        MissingDependency: text must be tokenised, but sentencepiece is not installed.
    """
    start = open_start(base)
    bpe_model = read_bpe(start, options)
    is_new = bpe_model != start.bpe_model
    num_tokens = make_tokenizer(bpe_model).size + 1 if is_new else start.sizes.num_text_tokens
    sizes = replace(start.sizes, num_text_tokens=num_tokens)
    reader = _Reader(bpe_model, sizes, options)
    ready, unusable = read_clips(
        clips, lambda clip: reader.read(clip, features[clip.id]), "IndexTTS-2", progress
    )
    used = [clip for clip in clips if clip.id in ready]
    names = number_speakers(used, ready)
    has_audio = not start.is_random and any(not clip.arrays for clip in used)
    languages = {clip.speaker: clip.language for clip in reversed(used)}
    facts = {
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
    return Corpus(facts, ready, unusable)


class _Reader:
    """Gives clips their tokens, and says why one cannot be used."""

    def __init__(self, bpe_model: bytes, sizes: Sizes, options: Options) -> None:
        self.bpe_model = bpe_model
        self.sizes = sizes
        self.options = options
        self.layout = layout_of(sizes, own_emotion=options.emotion == "own clip")

    def read(self, clip: Clip, raw: Features) -> Features:
        """Return the features of a clip, ready to be drawn.

        Raises:
            DataError: the clip has to be left out.
        """
        most_codes = self.sizes.audio_positions - 1
        if len(raw["codes"]) > most_codes:
            raise DataError(
                f"it has {len(raw['codes'])} codes; IndexTTS-2 takes up to {most_codes}. Cut it "
                "in two."
            )
        is_given = "text_ids" in raw and self.options.text_ids == "as given"
        tokens = self._given(raw["text_ids"]) if is_given else self._encode(clip.text)
        most = min(self.options.max_text_tokens, self.sizes.max_text_tokens)
        if not 0 < len(tokens) <= most:
            raise DataError(
                f"its text makes {len(tokens)} tokens; expected 1 to {most}. Cut the clip in two, "
                "or write what is said."
            )
        found = {name: value for name, value in raw.items() if name != "text_ids"}
        return found | {"tokens": tokens, "layout": self.layout}

    def _given(self, ids: np.ndarray) -> np.ndarray:
        last = self.sizes.num_text_tokens - 2
        if len(ids) and (ids.min() < UNKNOWN or ids.max() > last):
            raise DataError(
                f"its text_ids are not between {UNKNOWN} and {last}. Name the bpe.model they were "
                "made with as 'Other bpe.model'."
            )
        if self.options.unknown_tokens == "leave out" and UNKNOWN in ids:
            raise DataError(
                "its text_ids hold the unknown token: its bpe.model lacks a letter. Write the "
                "text otherwise, or keep clips with unknown letters."
            )
        return ids.astype(np.int32)

    def _encode(self, text: str) -> np.ndarray:
        tokenizer = make_tokenizer(self.bpe_model)
        unknown = tokenizer.unknown(text)
        if unknown and self.options.unknown_tokens == "leave out":
            listed = " ".join(dict.fromkeys(unknown))[:60]
            raise DataError(
                f"the bpe.model does not know {listed}. Write the text in letters it knows, give "
                "another bpe.model, or keep clips with unknown letters."
            )
        return np.array(tokenizer.encode(text), np.int32)


def read_bpe(start: Base, options: Options) -> bytes:
    """Return the bpe.model that texts are read with: another one that is named, or the base's.

    Raises:
        CheckpointError: the file that is named cannot be read.
    """
    if not options.bpe_model:
        return start.bpe_model
    try:
        return Path(options.bpe_model).read_bytes()
    except OSError as error:
        raise CheckpointError(
            f"{options.bpe_model} cannot be read: {error.strerror}. Give a bpe.model."
        ) from None

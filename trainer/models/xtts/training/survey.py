"""Survey all clips at once: the vocabulary, tokens, speakers and their references."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from trainer.core.errors import DataError
from trainer.core.specs import Corpus, Progress
from trainer.core.types import Clip, Features
from trainer.models._survey import number_speakers, read_clips
from trainer.models.xtts.checkpoint.base_folder import Base
from trainer.models.xtts.checkpoint.base_model import FORMAT, open_base_model
from trainer.models.xtts.facts import Facts, ShortText, Speaker
from trainer.models.xtts.network.sizes import CODE_STRIDE, OUTPUT_RATE, SAMPLE_RATE, Sizes
from trainer.models.xtts.options import LAYERS, Options
from trainer.models.xtts.text.cleaning import plain_language
from trainer.models.xtts.text.tokenizer import XttsTokenizer
from trainer.models.xtts.text.vocabulary import Extension, extend_vocabulary

# Chosen by hand: 12 s are three chunks of the published 4 s. Checkpoints contain the references,
# and each short text is spoken at every check, so there are few of both.
_REFERENCE_S = 12.0
_MOST_REFERENCES = 8
_SHORT_TEXTS = 4


def survey(
    features: dict[str, Features],
    clips: Sequence[Clip],
    options: Options,
    base: Path | None,
    progress: Progress,
) -> Corpus:
    """Tokenize every clip, with a vocabulary that is extended by its letters if options allow it.

    Raises:
        DataError: no train clip is usable.
        CheckpointError: the base checkpoint cannot be used.
    """
    start = open_base_model(base)
    progress("Reading the text", 0, len(clips))
    extension = _extend(start.vocab_json, clips, options)
    _require_trainable(extension, options)
    reader = _Reader(XttsTokenizer(extension.vocab_json, amharic_g2p=options.amharic_g2p), options)
    ready, unusable = read_clips(
        clips, lambda clip: reader.read(clip, features[clip.id]), "XTTS", progress
    )
    used = [clip for clip in clips if clip.id in ready]
    names = number_speakers(used, ready)
    spoken: dict[str, list[Clip]] = {}
    for clip in used:
        spoken.setdefault(clip.speaker, []).append(clip)
    sizes = _sizes_of(start, reader.tokenizer, options)
    gpt = sizes.gpt
    layout = [gpt.start_text, gpt.stop_text, gpt.start_audio, gpt.stop_audio, gpt.num_latents]
    for clip in used:
        ready[clip.id]["layout"] = np.array([*layout, options.upstream_masking], np.int32)
    facts: Facts = {
        "format": FORMAT,
        "family": "xtts",
        "sizes": sizes.to_json(),
        "vocab": extension.vocab_json,
        "related": {str(new): old for new, old in extension.new.items()},
        "amharic_g2p": options.amharic_g2p,
        "language_costs": [asdict(cost) for cost in extension.report],
        "config": start.config,
        "speakers": [_describe_speaker(name, spoken[name]) for name in names],
        "sample_rate": OUTPUT_RATE,
        "licence": start.licence,
        "short_texts": _pick_short(used, ready),
    }
    return Corpus(dict(facts), ready, unusable)


class _Reader:
    """Tokenizes clips, or says why one cannot be used."""

    def __init__(self, tokenizer: XttsTokenizer, options: Options) -> None:
        self.tokenizer = tokenizer
        self.options = options

    def read(self, clip: Clip, raw: Features) -> Features:
        """Return the features of a clip with its tokens.

        Raises:
            DataError: the clip has to be left out.
        """
        self._check_length(clip, len(raw["codes"]))
        cleaned = self.tokenizer.clean(clip.text, clip.language)
        if not cleaned.strip():
            raise DataError("its text is empty after cleaning. Write what is spoken.")
        unknown = self.tokenizer.unknown(clip.text, clip.language)
        if unknown:
            listed = " ".join(dict.fromkeys(unknown))[:60]
            is_amharic = plain_language(clip.language) == "am" and not self.options.amharic_g2p
            by_sound = "turn on 'Amharic as phonemes', or " if is_amharic else ""
            raise DataError(
                f"the tokenizer has no token for {listed}. Change the text, or {by_sound}"
                "set 'Extend the vocabulary' to always."
            )
        tokens = self.tokenizer.encode(clip.text, clip.language)
        if len(tokens) > self.options.max_text_tokens:
            raise DataError(
                f"its text has {len(tokens)} tokens; expected at most "
                f"{self.options.max_text_tokens}. Split the clip."
            )
        return raw | {"tokens": np.array(tokens, np.int32)}

    def _check_length(self, clip: Clip, num_codes: int) -> None:
        # One more code is allowed, because the last one of a clip is usually not full: the
        # published limit of 255,995 samples makes 250 codes, of which 249 are full.
        if (num_codes - 1) * CODE_STRIDE > self.options.max_audio_s * SAMPLE_RATE:
            raise DataError(
                f"it lasts {clip.duration_s:.1f} s; the limit for XTTS is "
                f"{self.options.max_audio_s:g} s. Split the clip, or raise the limit."
            )


def _extend(vocab_json: str, clips: Sequence[Clip], options: Options) -> Extension:
    """Return the vocabulary, extended by what the train clips need if the options allow it."""
    # Only train clips: letters that occur only in validation could not be learned.
    known = XttsTokenizer(vocab_json)
    chosen = [
        (clip.text, clip.language)
        for clip in clips
        if clip.split == "train"
        and options.new_tokens != "never"
        and (options.new_tokens == "always" or not known.knows(clip.language))
    ]
    if not chosen:
        return Extension(vocab_json, {}, ())
    return extend_vocabulary(vocab_json, chosen, amharic_g2p=options.amharic_g2p)


def _require_trainable(extension: Extension, options: Options) -> None:
    if extension.new and options.freeze in ("embeddings", "both"):
        languages = [cost.language for cost in extension.report if cost.new_tokens]
        raise DataError(
            f"The texts in {', '.join(languages)} need {len(extension.new)} new tokens, but the "
            "embeddings are frozen, so these would not be learned. Set Freeze to conditioning or "
            "none, or set 'Extend the vocabulary' to never."
        )


def _sizes_of(start: Base, tokenizer: XttsTokenizer, options: Options) -> Sizes:
    gpt = start.sizes.gpt
    gpt = replace(
        gpt,
        # An extended vocabulary needs more rows; a table never shrinks.
        num_text_tokens=max(gpt.num_text_tokens, tokenizer.size),
        start_text=tokenizer.start,
        stop_text=tokenizer.stop,
        layers=LAYERS.get(options.size, gpt.layers),
    )
    return replace(start.sizes, gpt=gpt)


def _describe_speaker(name: str, own: Sequence[Clip]) -> Speaker:
    """Choose the train clips that serve as the reference of a voice: long ones, 12 s in total."""
    # A speaker of validation clips alone still needs a voice for previews.
    pool = [clip for clip in own if clip.split == "train"] or own
    chosen: list[Clip] = []
    length_s = 0.0
    # Ties go by id, so that a resume chooses the same clips.
    for clip in sorted(pool, key=lambda clip: (-clip.duration_s, clip.id)):
        if not chosen or length_s + clip.duration_s <= _REFERENCE_S:
            chosen.append(clip)
            length_s += clip.duration_s
    languages = Counter(plain_language(clip.language) for clip in own)
    return {
        "name": name,
        "languages": [language for language, _ in languages.most_common()],
        "references": [clip.audio_path for clip in chosen[:_MOST_REFERENCES]],
    }


def _pick_short(clips: Sequence[Clip], ready: dict[str, Features]) -> list[ShortText]:
    """Return the shortest texts with their number of codes, for `checks` of endless speech."""
    seen: dict[str, ShortText] = {}
    for clip in sorted(clips, key=lambda clip: (len(ready[clip.id]["tokens"]), clip.id)):
        # Each text once, or a frequent word such as "Yes." could take all places.
        num_codes = len(ready[clip.id]["codes"])
        about = ShortText(
            text=clip.text, language=clip.language, speaker=clip.speaker, num_codes=num_codes
        )
        seen.setdefault(clip.text, about)
    return list(seen.values())[:_SHORT_TEXTS]

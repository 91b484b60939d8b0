"""Text to audio with a trained GPT: sentences, codes, latents, vocoder."""

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainer.data.sentences import split_sentences
from trainer.errors import DataError
from trainer.models.xtts.generation import Generated, draw, generate
from trainer.models.xtts.sizes import OUTPUT_RATE
from trainer.models.xtts.tokenizer import UNKNOWN, XttsTokenizer
from trainer.models.xtts.voice import SpeakingGpt, own_model
from trainer.specs import Speech

_SEED = 1234
_PAUSE_S = 0.1
_LONGEST_LETTERS = 200
_OVERRUN = 2.0


def synthesize(model: nn.Module, facts: dict[str, Any], text: str, speaker: str) -> Speech:
    """Speak a text in the voice of a speaker; an empty speaker name takes the first one.

    Raises:
        DataError: the speaker is unknown, or nothing of the text can be spoken.
    """
    waves = list(_speak(model, facts, text, speaker, _decode_whole))
    return Speech(np.concatenate(waves), OUTPUT_RATE)


def stream(model: nn.Module, facts: dict[str, Any], text: str, speaker: str) -> Iterator[Speech]:
    """Yield what `synthesize` returns in pieces, while the codes are still being drawn.

    Raises:
        DataError: the speaker is unknown, or nothing of the text can be spoken.
    """
    for wave in _speak(model, facts, text, speaker, _decode_pieces):
        yield Speech(wave, OUTPUT_RATE)


@torch.no_grad()
def _speak(
    model: nn.Module,
    facts: dict[str, Any],
    text: str,
    speaker: str,
    decode: Callable[[SpeakingGpt, Tensor, Tensor, str], Iterator[np.ndarray]],
) -> Iterator[np.ndarray]:
    """Yield the audio (T_wav,) of each sentence as it is decoded, with pauses in between."""
    gpt = own_model(model)
    voice = _find_speaker(facts, speaker)
    encoded = _encode(facts, text, voice)
    was_training = gpt.training
    gpt.eval()
    try:
        latents = gpt.voice.latents(gpt, voice["name"])
        for number, tokens in enumerate(encoded):
            if number:
                yield np.zeros(int(_PAUSE_S * OUTPUT_RATE), np.float32)
            yield from decode(gpt, latents, tokens, voice["name"])
    finally:
        gpt.train(was_training)


def _decode_whole(
    gpt: SpeakingGpt, latents: Tensor, tokens: Tensor, name: str
) -> Iterator[np.ndarray]:
    """Yield the audio (T_wav,) of tokens (T_text,) in one piece; latents: (1, 32, D)."""
    yield gpt.voice.decode(_generate(gpt, latents, tokens).latents[None], name)


def _decode_pieces(
    gpt: SpeakingGpt, latents: Tensor, tokens: Tensor, name: str
) -> Iterator[np.ndarray]:
    """Yield the audio (T_wav,) of tokens (T_text,) as it is drawn; latents: (1, 32, D)."""
    drawn = draw(gpt, latents, tokens.to(latents.device), gpt.sampling, _SEED)
    return gpt.voice.decode_pieces((step.latent for step in drawn), name, latents.device)


@torch.no_grad()
def checks(model: nn.Module, facts: dict[str, Any]) -> dict[str, float]:
    """Return how often speech of the corpus' shortest texts does not end in time.

    `overrun_rate` counts texts whose codes reach twice the recording's number (and half a second
    more) without a stop, the fault that short sentences show first. A voice whose recordings are
    gone says none.
    """
    gpt = own_model(model)
    texts = [about for about in facts["short_texts"] if gpt.voice.can_speak(about["speaker"])]
    if not texts:
        return {}
    overruns = 0
    tokenizer = _tokenizer(facts)
    latents = {name: gpt.voice.latents(gpt, name) for name in {t["speaker"] for t in texts}}
    for about in texts:
        tokens = tokenizer.encode(about["text"], about["language"])
        limit = math.ceil(_OVERRUN * about["num_codes"]) + 11
        found = _generate(gpt, latents[about["speaker"]], torch.tensor(tokens), limit)
        overruns += not found.stopped
    return {"overrun_rate": overruns / len(texts)}


def _generate(
    gpt: SpeakingGpt, latents: Tensor, tokens: Tensor, limit: int | None = None
) -> Generated:
    """Draw codes for tokens (T_text,) after latents (1, 32, D)."""
    tokens = tokens.to(latents.device)
    return generate(gpt, latents, tokens, gpt.sampling, _SEED, limit)


def _encode(facts: dict[str, Any], text: str, voice: dict[str, Any]) -> list[Tensor]:
    """Return the tokens (T_text,) of each sentence; what the tokenizer does not know is left out.

    Raises:
        DataError: nothing is left.
    """
    tokenizer = _tokenizer(facts)
    language, text = _find_language(tokenizer, text, voice)
    unknown = tokenizer.ids[UNKNOWN]
    most = facts["sizes"]["gpt"]["max_text_tokens"]
    found = []
    for sentence in split_sentences(text, _LONGEST_LETTERS):
        tokens = tokenizer.encode(sentence, language)
        known = [token for token in tokens if token != unknown][:most]
        # The first token names the language.
        if len(known) > 1:
            found.append(torch.tensor(known))
    if not found:
        raise DataError(
            f"Nothing of '{text[:60]}' can be spoken; expected text in '{language}', the language "
            "of the voice. Write the text in that language."
        )
    return found


def _find_language(tokenizer: XttsTokenizer, text: str, voice: dict[str, Any]) -> tuple[str, str]:
    """Return the language of a text and the text without the token that may name it, as `[de]`.

    Without one it is the first of the voice's languages in which every letter is known, else the
    one in which most are.
    """
    opening = re.match(r"\s*\[([A-Za-z-]+)\]", text)
    if opening and tokenizer.knows(opening[1]):
        return opening[1], text[opening.end() :]
    languages = voice.get("languages") or [voice["language"]]
    fewest = len(text) + 1
    best = languages[0]
    for language in languages if len(languages) > 1 else ():
        unknown = len(tokenizer.unknown(text, language))
        if unknown < fewest:
            best, fewest = language, unknown
        if not unknown:
            break
    return best, text


def _tokenizer(facts: dict[str, Any]) -> XttsTokenizer:
    return XttsTokenizer(facts["vocab"], amharic_g2p=facts["amharic_g2p"])


def _find_speaker(facts: dict[str, Any], speaker: str) -> dict[str, Any]:
    voices = {voice["name"]: voice for voice in facts["speakers"]}
    if not speaker:
        return facts["speakers"][0]
    if speaker not in voices:
        listed = ", ".join(list(voices)[:8])
        more = f" and {len(voices) - 8} more" if len(voices) > 8 else ""
        raise DataError(f"This model has no speaker '{speaker}'. Choose one of: {listed}{more}.")
    return voices[speaker]

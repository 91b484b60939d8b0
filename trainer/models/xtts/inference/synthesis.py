"""Speak a text with a trained GPT, sentence by sentence: codes, latents, vocoder."""

import math
import re
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from trainer.core.errors import DataError
from trainer.core.specs import Speech
from trainer.data.text.sentences import split_sentences
from trainer.models.xtts.facts import Facts, Speaker
from trainer.models.xtts.inference.generation import Generated, draw, generate
from trainer.models.xtts.inference.voice import SpeakingGpt, own_model
from trainer.models.xtts.network.sizes import OUTPUT_RATE
from trainer.models.xtts.text.tokenizer import UNKNOWN, XttsTokenizer

# All chosen by hand.
_SEED = 1234  # always the same, so that previews of different steps can be compared
_PAUSE_S = 0.1  # between sentences, in addition to the pauses that the model makes
_LONGEST_LETTERS = 200  # per sentence; longer ones are split
_OVERRUN = 2.0  # times the codes of the recording


def synthesize(model: nn.Module, facts: Facts, text: str, speaker: str) -> Speech:
    """Speak a text in the voice of a speaker; an empty name selects the first speaker.

    Raises:
        DataError: the speaker is unknown, or no part of the text can be spoken.
    """
    waves = list(_speak(model, facts, text, speaker, _decode_whole))
    return Speech(np.concatenate(waves), OUTPUT_RATE)


def stream(model: nn.Module, facts: Facts, text: str, speaker: str) -> Iterator[Speech]:
    """Yield the same audio as `synthesize` in pieces, while codes are still being sampled.

    Raises:
        DataError: the speaker is unknown, or no part of the text can be spoken.
    """
    for wave in _speak(model, facts, text, speaker, _decode_pieces):
        yield Speech(wave, OUTPUT_RATE)


@torch.no_grad()
def _speak(
    model: nn.Module,
    facts: Facts,
    text: str,
    speaker: str,
    decode: Callable[[SpeakingGpt, Tensor, Tensor, str], Iterator[np.ndarray]],
) -> Iterator[np.ndarray]:
    """Yield the audio (T_wav,) of each sentence as it is decoded, and pauses between sentences."""
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
    """Yield the audio (T_wav,) of tokens (T_text,) in several pieces; latents: (1, 32, D)."""
    drawn = draw(gpt, latents, tokens.to(latents.device), gpt.sampling, _SEED)
    return gpt.voice.decode_pieces((step.latent for step in drawn), name, latents.device)


@torch.no_grad()
def checks(model: nn.Module, facts: Facts) -> dict[str, float]:
    """Return how often the speech of the corpus's shortest texts does not end in time.

    `overrun_rate` is the share of texts with more than twice the codes of the recording (and half a
    second more) without a stop, a fault that short sentences show first. Voices whose recordings
    are missing are skipped.
    """
    gpt = own_model(model)
    short = facts.get("short_texts", ())
    texts = [about for about in short if gpt.voice.can_speak(about["speaker"])]
    if not texts:
        return {}
    overruns = 0
    tokenizer = _tokenizer(facts)
    latents = {name: gpt.voice.latents(gpt, name) for name in {t["speaker"] for t in texts}}
    for about in texts:
        tokens = tokenizer.encode(about["text"], about["language"])
        limit = math.ceil(_OVERRUN * about["num_codes"]) + 11  # 11 codes are 0.5 s
        found = _generate(gpt, latents[about["speaker"]], torch.tensor(tokens), limit)
        overruns += not found.stopped
    return {"overrun_rate": overruns / len(texts)}


def _generate(
    gpt: SpeakingGpt, latents: Tensor, tokens: Tensor, limit: int | None = None
) -> Generated:
    """Sample codes for tokens (T_text,) and latents (1, 32, D)."""
    tokens = tokens.to(latents.device)
    return generate(gpt, latents, tokens, gpt.sampling, _SEED, limit)


def _encode(facts: Facts, text: str, voice: Speaker) -> list[Tensor]:
    """Return the tokens (T_text,) of each sentence, without unknown ones.

    Raises:
        DataError: no tokens are left.
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
            f"No part of '{text[:60]}' can be spoken; expected text in '{language}', the language "
            "of the voice. Write the text in that language."
        )
    return found


def _find_language(tokenizer: XttsTokenizer, text: str, voice: Speaker) -> tuple[str, str]:
    """Return the language of a text, and the text without a language token such as `[de]`.

    Without a token, it is the first of the voice's languages in which every letter is known, or
    the one with the fewest unknown letters.
    """
    opening = re.match(r"\s*\[([A-Za-z-]+)\]", text)
    if opening and tokenizer.knows(opening[1]):
        return opening[1], text[opening.end() :]
    languages = voice.get("languages") or [voice.get("language", "")]
    fewest = len(text) + 1
    best = languages[0]
    for language in languages if len(languages) > 1 else ():
        unknown = len(tokenizer.unknown(text, language))
        if unknown < fewest:
            best, fewest = language, unknown
        if not unknown:
            break
    return best, text


def _tokenizer(facts: Facts) -> XttsTokenizer:
    return XttsTokenizer(facts["vocab"], amharic_g2p=facts["amharic_g2p"])


def _find_speaker(facts: Facts, speaker: str) -> Speaker:
    voices = {voice["name"]: voice for voice in facts["speakers"]}
    if not speaker:
        return facts["speakers"][0]
    if speaker not in voices:
        listed = ", ".join(list(voices)[:8])
        more = f" and {len(voices) - 8} more" if len(voices) > 8 else ""
        raise DataError(f"This model has no speaker '{speaker}'. Choose one of: {listed}{more}.")
    return voices[speaker]

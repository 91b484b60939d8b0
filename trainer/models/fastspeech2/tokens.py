"""Turn text into the symbols that the network reads."""

import unicodedata
from collections.abc import Sequence

import numpy as np

from trainer.data.text.normalization import clean_text, text_to_phonemes

PAD, BEGIN, END = "<pad>", "<s>", "</s>"
SPECIALS = (PAD, BEGIN, END)


def split_symbols(texts: Sequence[str], languages: Sequence[str], kind: str) -> list[list[str]]:
    """Split each text into symbols; `kind` is `characters` or `phonemes` (from espeak-ng)."""
    if kind == "phonemes":
        # Not lower-cased: in the IPA, upper and lower case are different sounds.
        return [_spell(text) for text in _phonemes(texts, languages)]
    return [
        _spell(clean_text(text, language).lower())
        for text, language in zip(texts, languages, strict=True)
    ]


def encode_symbols(symbols: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """Return symbol numbers (T_text,) int32, with the sentence marks at both ends.

    Unknown symbols are left out, but a letter with an unknown accent falls back to the plain
    letter. The result is empty if no known symbol is speakable.
    """
    numbers = {symbol: index for index, symbol in enumerate(known)}
    found = []
    for symbol in symbols:
        plain = unicodedata.normalize("NFD", symbol)[:1]
        match = symbol if symbol in numbers else plain
        if match in numbers:
            found.append(match)
    if not any(is_speakable(symbol) for symbol in found):
        return np.zeros(0, np.int32)
    return np.array([numbers[symbol] for symbol in (BEGIN, *found, END)], np.int32)


def is_speakable(symbol: str) -> bool:
    """Return whether a symbol stands for a sound: a letter, a digit or a phone-set symbol."""
    # Unicode categories: letters, numbers and symbols.
    return symbol not in SPECIALS and unicodedata.category(symbol[0])[0] in "LNS"


def is_sound(symbol: str) -> bool:
    """Return whether a symbol is heard by itself: a letter or digit, not a mark or a pause."""
    return symbol not in SPECIALS and unicodedata.category(symbol[0]) in ("Lu", "Ll", "Lo", "Nd")


def _spell(text: str) -> list[str]:
    """Return the characters of a text, with Hangul syllables split into their letters."""
    # A few dozen letters can be learned from minutes of speech; 11,172 syllables cannot.
    text = " ".join(text.split())
    return [
        letter
        for character in text
        for letter in (
            unicodedata.normalize("NFD", character)
            if "\uac00" <= character <= "\ud7a3"
            else character
        )
    ]


def _phonemes(texts: Sequence[str], languages: Sequence[str]) -> list[str]:
    found = [""] * len(texts)
    for language in sorted(set(languages)):
        rows = [row for row, name in enumerate(languages) if name == language]
        spoken = text_to_phonemes([texts[row] for row in rows], language)
        for row, phonemes in zip(rows, spoken, strict=True):
            found[row] = phonemes
    return found

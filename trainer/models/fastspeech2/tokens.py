"""Text to the symbols the network reads, and long text to sentences."""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

from trainer.data.text import clean_text, text_to_phonemes

PAD, BEGIN, END = "<pad>", "<s>", "</s>"
SPECIALS = (PAD, BEGIN, END)
_LONGEST_SENTENCE = 220
# An ASCII mark without a space after it belongs to a number or an abbreviation.
_SENTENCE_END = re.compile(r"(?<=[.!?;:\u061f\u06d4\u0964])\s+|(?<=[\u3002\uff01\uff1f\u1362])\s*")
_PAUSE = re.compile(r"(?<=[,\u3001\uff0c\u060c\u1363])\s*|\s+")


def split_symbols(texts: Sequence[str], languages: Sequence[str], kind: str) -> list[list[str]]:
    """Split each text into symbols; `kind` is `characters` or `phonemes` (through espeak-ng)."""
    if kind == "phonemes":
        return [_spell(text) for text in _phonemes(texts, languages)]
    return [
        _spell(clean_text(text, language).lower())
        for text, language in zip(texts, languages, strict=True)
    ]


def encode_symbols(symbols: Sequence[str], known: Sequence[str]) -> np.ndarray:
    """Return symbol numbers (T_text,) int32 between the sentence marks.

    Unknown symbols are left out; a letter with an unknown accent falls back to the plain letter.
    Empty if nothing speakable is known.
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
    """Say whether a symbol stands for a sound: a letter, a digit or a symbol of a phone set."""
    return symbol not in SPECIALS and unicodedata.category(symbol[0])[0] in "LNS"


def is_sound(symbol: str) -> bool:
    """Say whether a symbol is heard by itself: a letter or digit, not a mark or a pause."""
    return symbol not in SPECIALS and unicodedata.category(symbol[0]) in ("Lu", "Ll", "Lo", "Nd")


def split_sentences(text: str) -> list[str]:
    """Cut text at sentence ends, and what is still too long at pauses, else between words."""
    pieces = []
    for sentence in _SENTENCE_END.split(text):
        pieces += _pack(_PAUSE.split(sentence)) if len(sentence) > _LONGEST_SENTENCE else [sentence]
    return [piece.strip() for piece in pieces if any(map(is_speakable, piece.strip()))]


def _pack(parts: Sequence[str]) -> list[str]:
    """Join parts into pieces that stay under the limit; a single part may exceed it."""
    pieces = [""]
    for part in parts:
        if pieces[-1] and len(pieces[-1]) + len(part) > _LONGEST_SENTENCE:
            pieces.append("")
        pieces[-1] = f"{pieces[-1]} {part}".strip()
    return pieces


def _spell(text: str) -> list[str]:
    """Return the characters of a text; Hangul syllables fall apart into their letters."""
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

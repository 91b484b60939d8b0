"""Split long text into pieces that a network can speak."""

import re
import unicodedata
from collections.abc import Sequence

# An ASCII mark without a following space is part of a number or an abbreviation ("3.5", "e.g").
# The other marks are Arabic, Devanagari, ideographic and Ethiopic.
_SENTENCE_END = re.compile(r"(?<=[.!?;:\u061f\u06d4\u0964])\s+|(?<=[\u3002\uff01\uff1f\u1362])\s*")
_PAUSE = re.compile(r"(?<=[,\u3001\uff0c\u060c\u1363])\s*|\s+")


def split_sentences(text: str, longest: int = 220) -> list[str]:
    """Split text at sentence ends; split sentences over `longest` characters at pauses or words."""
    pieces = []
    for sentence in _SENTENCE_END.split(text):
        is_long = len(sentence) > longest
        pieces += _pack(_PAUSE.split(sentence), longest) if is_long else [sentence]
    return [piece.strip() for piece in pieces if any(map(_is_speakable, piece.strip()))]


def _is_speakable(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "LNS"


def _pack(parts: Sequence[str], longest: int) -> list[str]:
    """Join parts into pieces of at most `longest` characters; a single part may be longer."""
    pieces = [""]
    for part in parts:
        if pieces[-1] and len(pieces[-1]) + len(part) > longest:
            pieces.append("")
        pieces[-1] = f"{pieces[-1]} {part}".strip()
    return pieces

"""Text to tokens as upstream does it: a sentencepiece model over split and upper-cased text."""

import re
from functools import lru_cache
from typing import Any, Protocol

from trainer.errors import CheckpointError, MissingDependency

UNKNOWN = 2
"""The token that stands for what a model cannot write."""

_SPACE = "\u2581"

# Hangul syllables and jamo, CJK, kana, Yi, full- and half-width forms, as upstream splits them off.
_SINGLES = re.compile(
    "([\u1100-\u11ff\u2e80-\ua4cf\ua840-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff65-\uffdc"
    "\U00020000-\U0002ffff])"
)


class Tokenizer(Protocol):
    """Text to ids from 3 on; 0 and 1 start and stop a text, 2 is unknown."""

    size: int
    """How many tokens there are."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ...

    def unknown(self, text: str) -> list[str]:
        """Return the parts of a text that have no id."""
        ...

    def split(self, text: str) -> list[str]:
        """Return the pieces that a text is read in."""
        ...


def split_characters(text: str) -> str:
    """Set CJK and Hangul characters apart by spaces, and write the rest in upper case."""
    parts = (part.strip().upper() for part in _SINGLES.split(text.strip()))
    return " ".join(part for part in parts if part)


class ByteTokenizer:
    """The bytes of the text, for a base without a bpe.model; nothing is unknown to it."""

    size = 259

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return [byte + 3 for byte in split_characters(text).encode(errors="replace")]

    def unknown(self, text: str) -> list[str]:
        """Return nothing."""
        return []

    def split(self, text: str) -> list[str]:
        """Return the bytes that a text is read in, as two hexadecimal digits each."""
        return [f"{byte:02x}" for byte in split_characters(text).encode(errors="replace")]


class PieceTokenizer:
    """A bpe.model.

    Raises:
        MissingDependency: sentencepiece is not installed.
        CheckpointError: it is no sentencepiece model, or has no unknown token at 2.
    """

    def __init__(self, model: bytes) -> None:
        self._pieces = _open(model)
        self.size = int(self._pieces.GetPieceSize())

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        # Upstream leaves a single letter as it is.
        prepared = text if len(text.strip()) == 1 else split_characters(text)
        return list(self._pieces.EncodeAsIds(prepared))

    def unknown(self, text: str) -> list[str]:
        """Return the parts of a text that have no id."""
        prepared = text if len(text.strip()) == 1 else split_characters(text)
        pairs = zip(
            self._pieces.EncodeAsPieces(prepared), self._pieces.EncodeAsIds(prepared), strict=True
        )
        return [piece for piece, number in pairs if number == UNKNOWN]

    def split(self, text: str) -> list[str]:
        """Return the pieces that a text is read in."""
        prepared = text if len(text.strip()) == 1 else split_characters(text)
        return [str(piece) for piece in self._pieces.EncodeAsPieces(prepared)]

    def pieces(self) -> list[str]:
        """Return what every id stands for."""
        return [str(self._pieces.IdToPiece(number)) for number in range(self.size)]

    def parts(self, piece: str) -> list[int]:
        """Return the known ids that make up a piece of another model."""
        spelt = piece.replace(_SPACE, " ").strip()
        found = [number for number in self._pieces.EncodeAsIds(spelt) if number > UNKNOWN]
        # Every word begins with a space, which tells nothing of a letter that is unknown.
        return [number for number in found if self._pieces.IdToPiece(number) != _SPACE]


@lru_cache(maxsize=4)
def make_tokenizer(model: bytes) -> ByteTokenizer | PieceTokenizer:
    """Return the tokenizer of a bpe.model; without one, that of bytes."""
    return PieceTokenizer(model) if model else ByteTokenizer()


def related_rows(old: bytes, new: bytes) -> list[list[int]]:
    """Return for every row of the new text tables the old rows whose mean starts it.

    A token of both models keeps its row; a new one starts from its parts in the old model; an
    empty list stands for the mean of all. The last row, beyond all tokens, stays the last.
    """
    before, after = make_tokenizer(old), make_tokenizer(new)
    if not isinstance(before, PieceTokenizer) or not isinstance(after, PieceTokenizer):
        return [[number] if number <= UNKNOWN else [] for number in range(after.size + 1)]
    known = {piece: number for number, piece in enumerate(before.pieces())}
    rows = [[known[piece]] if piece in known else before.parts(piece) for piece in after.pieces()]
    return [*rows, [before.size]]


def _open(model: bytes) -> Any:
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError:
        raise MissingDependency("sentencepiece", "Reading text for IndexTTS-2") from None
    try:
        pieces = SentencePieceProcessor(model_proto=model)
        if pieces.unk_id() != UNKNOWN:
            raise ValueError("its unknown token is not number 2")
    except (RuntimeError, ValueError, OSError) as error:
        raise CheckpointError(
            f"The bpe.model cannot be read: {str(error)[:200]}. Give a sentencepiece model made as "
            "IndexTTS-2's is: <s> 0, </s> 1, <unk> 2."
        ) from None
    return pieces

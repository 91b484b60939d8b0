"""Tokenize text as upstream does: a sentencepiece model over split and upper-cased text."""

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

from trainer.core.errors import CheckpointError, MissingDependency

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

UNKNOWN = 2
"""The token for text that a model has no token for."""

_SPACE = "\u2581"

# Hangul syllables and jamo, CJK, kana, Yi, full- and half-width forms: upstream's ranges.
_SINGLES = re.compile(
    "([\u1100-\u11ff\u2e80-\ua4cf\ua840-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff65-\uffdc"
    "\U00020000-\U0002ffff])"
)


class Tokenizer(Protocol):
    """Turns text into ids of 3 and above; 0 and 1 start and stop a text, 2 is unknown."""

    size: int
    """Number of tokens."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ...

    def unknown(self, text: str) -> list[str]:
        """Return the parts of a text that have no id."""
        ...

    def split(self, text: str) -> list[str]:
        """Return the pieces that a text is split into."""
        ...


def split_characters(text: str) -> str:
    """Separate CJK and Hangul characters by spaces, and turn the rest into upper case."""
    parts = (part.strip().upper() for part in _SINGLES.split(text.strip()))
    return " ".join(part for part in parts if part)


class ByteTokenizer:
    """Tokenizes bytes, for a base without a bpe.model; no text is unknown to it."""

    size = 259  # 256 bytes after the start, stop and unknown tokens

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return [byte + 3 for byte in split_characters(text).encode(errors="replace")]

    def unknown(self, text: str) -> list[str]:
        """Return an empty list."""
        return []

    def split(self, text: str) -> list[str]:
        """Return the bytes of a text, as two hexadecimal digits each."""
        return [f"{byte:02x}" for byte in split_characters(text).encode(errors="replace")]


class PieceTokenizer:
    """Tokenizes with a bpe.model.

    Raises:
        MissingDependency: sentencepiece is not installed.
        CheckpointError: it is not a sentencepiece model, or its unknown token is not number 2.
    """

    def __init__(self, model: bytes) -> None:
        self._pieces = _open(model)
        self.size = int(self._pieces.GetPieceSize())

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        # Upstream does not change a text of a single character.
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
        """Return the pieces that a text is split into."""
        prepared = text if len(text.strip()) == 1 else split_characters(text)
        return [str(piece) for piece in self._pieces.EncodeAsPieces(prepared)]

    def pieces(self) -> list[str]:
        """Return the piece of every id."""
        return [str(self._pieces.IdToPiece(number)) for number in range(self.size)]

    def parts(self, piece: str) -> list[int]:
        """Return the known ids that a piece of another model splits into."""
        spelt = piece.replace(_SPACE, " ").strip()
        found = [number for number in self._pieces.EncodeAsIds(spelt) if number > UNKNOWN]
        # Every word begins with a space, which says nothing about an unknown letter.
        return [number for number in found if self._pieces.IdToPiece(number) != _SPACE]


@lru_cache(maxsize=4)
def make_tokenizer(model: bytes) -> ByteTokenizer | PieceTokenizer:
    """Return the tokenizer of a bpe.model, or one of bytes if the model is empty."""
    return PieceTokenizer(model) if model else ByteTokenizer()


def related_rows(old: bytes, new: bytes) -> list[list[int]]:
    """Return for every row of the new text tables the old rows whose mean initializes it.

    A token of both models keeps its row. A new token starts from the tokens that the old model
    splits it into; an empty list means the mean of all rows. The extra last row stays the last.
    """
    before, after = make_tokenizer(old), make_tokenizer(new)
    if not isinstance(before, PieceTokenizer) or not isinstance(after, PieceTokenizer):
        return [[number] if number <= UNKNOWN else [] for number in range(after.size + 1)]
    known = {piece: number for number, piece in enumerate(before.pieces())}
    rows = [[known[piece]] if piece in known else before.parts(piece) for piece in after.pieces()]
    return [*rows, [before.size]]


def _open(model: bytes) -> "SentencePieceProcessor":
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
            f"The bpe.model cannot be read: {str(error)[:200]}. Choose a sentencepiece model with "
            "the special tokens of IndexTTS-2: <s> 0, </s> 1, <unk> 2."
        ) from None
    return pieces

"""Text of IndexTTS-2: upstream's splitting, unknown letters, and tables for another bpe.model."""

import sys

import pytest
import torch

from tests.helpers.indextts2 import make_bpe
from trainer.core.errors import CheckpointError, MissingDependency
from trainer.models.indextts2.checkpoint.weights import map_rows
from trainer.models.indextts2.text.tokenizer import (
    ByteTokenizer,
    PieceTokenizer,
    make_tokenizer,
    related_rows,
    split_characters,
)

KOREAN = ["\uc548\ub155\ud558\uc138\uc694", "\uc694\uc998 \uc548\ub155\ud558\uc138\uc694"]
JAPANESE = ["\u3053\u3093\u306b\u3061\u306f\u4e16\u754c", "\u4e16\u754c\u306f\u3053\u3093"]
PERSIAN = ["\u0633\u0644\u0627\u0645 \u062f\u0646\u06cc\u0627", "\u062f\u0646\u06cc\u0627\u06cc"]
AMHARIC = ["\u1230\u120b\u121d \u12d3\u1208\u121d", "\u12d3\u1208\u121d \u1230\u120b"]
LATIN = ["hello world", "the world is wide", "hello there"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello there", "HELLO THERE"),
        ("\uc548\ub155 Bob", "\uc548 \ub155 BOB"),
        ("\u4e16\u754c\u306f 3", "\u4e16 \u754c \u306f 3"),
        (" \u0633\u0644\u0627\u0645 ", "\u0633\u0644\u0627\u0645"),
        ("\u1230\u120b\u121d", "\u1230\u120b\u121d"),
    ],
)
def test_only_cjk_and_hangul_are_split_off(text: str, expected: str) -> None:
    assert split_characters(text) == expected


@pytest.mark.parametrize(
    "texts", [KOREAN, JAPANESE, PERSIAN, AMHARIC], ids=["ko", "ja", "fa", "am"]
)
def test_a_model_of_a_language_knows_its_letters_and_no_others(texts: list[str]) -> None:
    tokenizer = PieceTokenizer(make_bpe(texts, 60))

    assert tokenizer.unknown(texts[0]) == []
    assert min(tokenizer.encode(texts[0])) > 2
    assert tokenizer.unknown("hello") != []


def test_bytes_know_every_letter() -> None:
    tokenizer = ByteTokenizer()

    assert tokenizer.unknown(KOREAN[0]) == []
    assert max(tokenizer.encode(KOREAN[0])) < tokenizer.size


def test_kept_tokens_keep_their_rows_and_new_ones_start_from_their_parts() -> None:
    old, new = make_bpe(LATIN, 24), make_bpe([*LATIN, *KOREAN], 60)
    before, after = PieceTokenizer(old), PieceTokenizer(new)
    table = torch.randn(before.size + 1, 4)

    mapped = map_rows(table, related_rows(old, new))

    old_ids = {piece: number for number, piece in enumerate(before.pieces())}
    assert mapped.shape == (after.size + 1, 4)
    for number, piece in enumerate(after.pieces()):
        if piece in old_ids:
            assert torch.equal(mapped[number], table[old_ids[piece]])
    hangul = after.pieces().index("\uc548")
    torch.testing.assert_close(mapped[hangul], table.mean(dim=0))
    joined = [piece for piece in after.pieces() if piece not in old_ids and piece.isascii()]
    for piece in joined:
        parts = table[before.parts(piece)]
        torch.testing.assert_close(mapped[after.pieces().index(piece)], parts.mean(dim=0))
    assert torch.equal(mapped[-1], table[-1])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)

    with pytest.raises(MissingDependency, match="pip install sentencepiece"):
        PieceTokenizer(b"anything")


def test_a_file_that_is_no_model_is_refused() -> None:
    with pytest.raises(CheckpointError, match="bpe.model"):
        make_tokenizer(b"no model at all")

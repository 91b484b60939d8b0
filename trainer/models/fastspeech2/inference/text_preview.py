"""Preview how FastSpeech 2 reads texts: cleaned text, symbols, and symbols its base lacks."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path

from trainer.core.specs import TextPreview
from trainer.data.text.normalization import clean_text
from trainer.models.fastspeech2.checkpoint.weights import read_base
from trainer.models.fastspeech2.options import Options
from trainer.models.fastspeech2.tokens import is_speakable, split_symbols


def preview_texts(
    base: Path | None, options: Options, texts: Sequence[tuple[str, str]]
) -> list[TextPreview]:
    """Return how each (text, language) is read; without a base, no symbol is unknown."""
    # Without a base, the symbols come from the data, so all of them will be known.
    known = set(read_base(base)[0]["symbols"]) if base is not None else None
    words = [text for text, _ in texts]
    languages = [language for _, language in texts]
    spelled = split_symbols(words, languages, options.tokens)
    return [
        TextPreview(clean_text(text, language), tuple(symbols), _unknown(symbols, known))
        for (text, language), symbols in zip(texts, spelled, strict=True)
    ]


def _unknown(symbols: Sequence[str], known: set[str] | None) -> tuple[str, ...]:
    if known is None:
        return ()
    return tuple(
        symbol
        for symbol in dict.fromkeys(symbols)
        if is_speakable(symbol)
        and symbol not in known
        # An accented letter is read as the plain one if only that is known.
        and unicodedata.normalize("NFD", symbol)[:1] not in known
    )

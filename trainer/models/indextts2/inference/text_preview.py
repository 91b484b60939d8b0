"""Preview how IndexTTS-2 reads texts: prepared text, tokens, and parts without a token."""

from collections.abc import Sequence
from pathlib import Path

from trainer.core.specs import TextPreview
from trainer.models.indextts2.checkpoint.base_model import open_base_model
from trainer.models.indextts2.options import Options
from trainer.models.indextts2.text.tokenizer import make_tokenizer, split_characters
from trainer.models.indextts2.training.survey import read_bpe


def preview_texts(
    base: Path | None, options: Options, texts: Sequence[tuple[str, str]]
) -> list[TextPreview]:
    """Return how each (text, language) is read; a base without a bpe.model reads bytes."""
    tokenizer = make_tokenizer(read_bpe(open_base_model(base), options))
    return [
        TextPreview(
            split_characters(text),
            tuple(tokenizer.split(text)),
            # Each part once, in the order of the text; a set would lose the order.
            tuple(dict.fromkeys(tokenizer.unknown(text))),
        )
        for text, _ in texts
    ]

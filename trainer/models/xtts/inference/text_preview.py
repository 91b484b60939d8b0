"""Preview how XTTS reads texts: cleaned text, tokens, and letters that the vocabulary lacks."""

from collections.abc import Sequence
from pathlib import Path

from trainer.core.specs import TextPreview
from trainer.models.xtts.checkpoint.base_model import open_base_model
from trainer.models.xtts.options import Options
from trainer.models.xtts.text.tokenizer import UNKNOWN, XttsTokenizer


def preview_texts(
    base: Path | None, options: Options, texts: Sequence[tuple[str, str]]
) -> list[TextPreview]:
    """Return how each (text, language) is read with the vocabulary of the base."""
    tokenizer = XttsTokenizer(open_base_model(base).vocab_json, amharic_g2p=options.amharic_g2p)
    found = []
    for text, language in texts:
        cleaned = tokenizer.clean(text, language)
        letters = tokenizer.unknown_letters(cleaned)
        # Every unknown letter becomes the same token, so the letter is shown in its place.
        in_order = iter(letters)
        pieces = [
            next(in_order, piece) if piece == UNKNOWN else piece
            for piece in tokenizer.split(cleaned)
        ]
        # Each unknown letter once, in the order of the text; a set would lose the order.
        found.append(TextPreview(cleaned, tuple(pieces), tuple(dict.fromkeys(letters))))
    return found

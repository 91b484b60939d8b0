"""How the GPT reads texts: cleaned, merged into tokens, and which letters the vocabulary lacks."""

from collections.abc import Sequence
from pathlib import Path

from trainer.models.xtts.options import Options
from trainer.models.xtts.start import open_start
from trainer.models.xtts.tokenizer import UNKNOWN, XttsTokenizer
from trainer.specs import Reading


def read_texts(
    base: Path | None, options: Options, texts: Sequence[tuple[str, str]]
) -> list[Reading]:
    """Return how each text (with its language) is read by the base's own vocabulary."""
    tokenizer = XttsTokenizer(open_start(base).vocab_json, amharic_g2p=options.amharic_g2p)
    found = []
    for text, language in texts:
        cleaned = tokenizer.clean(text, language)
        letters = tokenizer.unknown_letters(cleaned)
        # Every unknown letter is one token, which does not tell what it stands for.
        in_order = iter(letters)
        pieces = [
            next(in_order, piece) if piece == UNKNOWN else piece
            for piece in tokenizer.split(cleaned)
        ]
        found.append(Reading(cleaned, tuple(pieces), tuple(dict.fromkeys(letters))))
    return found

"""Tokenize text with the published vocabulary: clean it, add the language token, apply BPE."""

import json
import re
from typing import TYPE_CHECKING

from trainer.core.errors import CheckpointError, DataError, MissingDependency
from trainer.models.xtts.text.cleaning import clean, plain_language

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

STOP, UNKNOWN, SPACE, START = "[STOP]", "[UNK]", "[SPACE]", "[START]"
_LANGUAGE_TOKEN = re.compile(r"\[([a-z]{2,3}(?:-[a-z]{2,4})?)\]")


class XttsTokenizer:
    """A vocabulary of the published format (the JSON of the package `tokenizers`)."""

    def __init__(self, vocab_json: str, *, amharic_g2p: bool = False) -> None:
        """Read the vocabulary.

        Args:
            amharic_g2p: write Amharic by its sounds in Latin letters before encoding.

        Raises:
            CheckpointError: the JSON is not a vocabulary of this format.
            MissingDependency: the package `tokenizers` is not installed.
        """
        self.vocab_json = vocab_json
        self.amharic_g2p = amharic_g2p
        self._bpe = _load_bpe(vocab_json)
        self.ids: dict[str, int] = self._bpe.get_vocab(with_added_tokens=True)
        missing = [name for name in (STOP, UNKNOWN, SPACE, START) if name not in self.ids]
        if missing:
            raise CheckpointError(
                f"The vocabulary has no token {', '.join(missing)}; expected {STOP}, {UNKNOWN}, "
                f"{SPACE} and {START}. Use the vocab.json of the base checkpoint."
            )
        self.stop = self.ids[STOP]
        self.start = self.ids[START]
        self._unknown = self.ids[UNKNOWN]

    @property
    def size(self) -> int:
        """Return the number of rows that an embedding table needs for this vocabulary."""
        return max(self.ids.values()) + 1

    @property
    def languages(self) -> list[str]:
        """Return the codes of the languages that have a token, in the order of their ids."""
        return list(language_tokens(self.ids))

    def knows(self, language: str) -> bool:
        """Return whether the language has a token."""
        return language_token(language) in self.ids

    def clean(self, text: str, language: str) -> str:
        """Return the cleaned text, before language and space tokens are added."""
        return clean(text, language, g2p=self.amharic_g2p)

    def encode(self, text: str, language: str) -> list[int]:
        """Return the ids, the language token first, without start and stop.

        Raises:
            DataError: the vocabulary has no token for the language.
        """
        if not self.knows(language):
            raise DataError(
                f"The vocabulary has no token for the language '{language}', only for "
                f"{', '.join(self.languages)}. Turn on extending the vocabulary, or choose the "
                "closest of these languages."
            )
        return self._encode(language_token(language) + self.clean(text, language)).ids

    def split(self, cleaned: str) -> list[str]:
        """Return the tokens of a cleaned text, without a language token."""
        return self._encode(cleaned).tokens

    def unknown(self, text: str, language: str) -> list[str]:
        """Return the token of an unknown language, then unknown characters in order."""
        found = self.unknown_letters(self.clean(text, language))
        return found if self.knows(language) else [language_token(language), *found]

    def unknown_letters(self, cleaned: str) -> list[str]:
        """Return the characters of a cleaned text that become the unknown token, in order."""
        marked = cleaned.replace(" ", SPACE)
        encoding = self._bpe.encode(marked)
        places = zip(encoding.ids, encoding.offsets, strict=True)
        return [marked[start:end] for number, (start, end) in places if number == self._unknown]

    def _encode(self, text: str) -> "Encoding":
        # The published vocabulary has a token for spaces, which its pre-tokenizer would drop.
        return self._bpe.encode(text.replace(" ", SPACE))


def language_token(language: str) -> str:
    """Return the token that a text of the language starts with."""
    code = plain_language(language)
    # The only published token with a region.
    return "[zh-cn]" if code == "zh" else f"[{code}]"


def language_tokens(ids: dict[str, int]) -> dict[str, int]:
    """Return language code -> id of every language token, in the order of their ids."""
    found = {}
    for token, identifier in sorted(ids.items(), key=lambda pair: pair[1]):
        if match := _LANGUAGE_TOKEN.fullmatch(token):
            found[match[1]] = identifier
    return found


def _load_bpe(vocab_json: str) -> "Tokenizer":
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise MissingDependency("tokenizers", "XTTS text") from None
    try:
        table = json.loads(vocab_json)
    except ValueError as error:
        raise CheckpointError(_not_a_vocabulary(f"it is not JSON ({error})")) from None
    problem = _problem_of(table)
    if problem:
        raise CheckpointError(_not_a_vocabulary(problem))
    return Tokenizer.from_str(vocab_json)


def _problem_of(table: object) -> str | None:
    """Return why the JSON is not a vocabulary, because the package's own errors are unclear."""
    model = table.get("model") if isinstance(table, dict) else None
    if not isinstance(model, dict) or model.get("type") != "BPE":
        return "it has no BPE model"
    ids = model.get("vocab")
    if not isinstance(ids, dict) or not all(isinstance(number, int) for number in ids.values()):
        return "its tokens have no ids"
    # Newer versions of the package write merges as pairs, older ones as text.
    for merge in model.get("merges", ()):
        parts = tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)
        for token in (*parts, "".join(parts)):
            if token not in ids:
                return f"it merges {parts!r}, but {token!r} is not a token"
    return None


def _not_a_vocabulary(reason: str) -> str:
    return (
        f"The vocabulary cannot be read: {reason}. Expected the vocab.json of an XTTS v2 "
        "checkpoint; copy it again from the base checkpoint."
    )

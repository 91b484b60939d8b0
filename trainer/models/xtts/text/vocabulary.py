"""Extend a vocabulary to new languages: letters, merges, and initial rows for new tokens."""

import json
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypedDict

import torch

from trainer.core.errors import CheckpointError
from trainer.models.xtts.text.cleaning import amharic_g2p as sounds_of
from trainer.models.xtts.text.cleaning import plain_language
from trainer.models.xtts.text.cleaning.korean import romanize_hangul
from trainer.models.xtts.text.tokenizer import (
    UNKNOWN,
    XttsTokenizer,
    language_token,
    language_tokens,
)

Texts = Sequence[tuple[str, str]]
"""Pairs of text and language."""

# Persian letters that Arabic lacks, with the Arabic letters of the most similar sounds.
_NEIGHBOURS = {
    "\u067e": "\u0628", "\u0686": "\u062c", "\u0698": "\u0632", "\u06af": "\u0643",
    "\u06a9": "\u0643", "\u06cc": "\u064a", "\u06c0": "\u0647", "\u0654": "\u0621",
}  # fmt: skip


@dataclass(frozen=True)
class LanguageCost:
    """The new tokens that a language needs, and what the model cannot read without them.

    Tokens per character refer to the cleaned text with its spaces; before the extension, a
    character that the vocabulary lacks counts as one token. A letter or merge that two languages
    need is counted for both.
    """

    language: str
    clips: int
    clips_with_unknown: int
    unknown_characters: tuple[str, ...]
    new_merges: int
    needs_language_token: bool
    tokens_per_character_before: float
    tokens_per_character_after: float

    @property
    def new_tokens(self) -> int:
        """Return the number of rows that the model's text tables gain for this language."""
        return len(self.unknown_characters) + self.new_merges + self.needs_language_token


@dataclass(frozen=True)
class Extension:
    """An extended vocabulary; `new` has for each new id the old ids whose mean initializes it."""

    vocab_json: str
    new: dict[int, list[int]]
    report: tuple[LanguageCost, ...]


def extend_vocabulary(
    vocab_json: str, texts: Texts, limit: int = 0, *, amharic_g2p: bool = False
) -> Extension:
    """Add what the texts need: unknown characters, tokens of their languages and some merges.

    Old ids do not change. Every new merge contains a new character, so texts without new characters
    are encoded exactly as before.

    Args:
        limit: the largest number of merges to learn, the most frequent first; 0 learns none.
        amharic_g2p: write Amharic by its sounds in Latin letters, which needs few new tokens.

    Raises:
        CheckpointError: the vocabulary cannot be read.
    """
    before = XttsTokenizer(vocab_json, amharic_g2p=amharic_g2p)
    cleaned: dict[str, list[str]] = defaultdict(list)
    for text, language in texts:
        cleaned[plain_language(language)].append(before.clean(text, language))
    growth = _Growth(vocab_json)
    # Merges come last: they are built from new letters.
    growth.add_letters(text for part in cleaned.values() for text in part)
    growth.add_languages(language for language in cleaned if not before.knows(language))
    growth.learn_merges([text for part in cleaned.values() for text in part], limit)
    after = XttsTokenizer(growth.vocab_json(), amharic_g2p=amharic_g2p)
    report = tuple(_cost(language, part, before, after) for language, part in cleaned.items())
    return Extension(after.vocab_json, growth.new, report)


def map_rows(
    table: torch.Tensor, old_json: str, new_json: str, related: dict[int, list[int]]
) -> torch.Tensor:
    """Convert the rows of a table to another vocabulary, token by token.

    A token of both vocabularies keeps its row. A new token gets the mean of its related rows, or of
    all old tokens' rows if it has none. Rows beyond the old vocabulary stay in place.

    Args:
        table: (V, D) embedding or head weight, or (V,) head bias.
        related: new id -> old ids, as in `Extension.new`.

    Returns:
        (V', D) or (V',), of the table's dtype; V' is never less than V.

    Raises:
        CheckpointError: the table has fewer rows than the old vocabulary has ids.
    """
    old, new = _ids_of(old_json), _ids_of(new_json)
    needed = max(old.values()) + 1
    if len(table) < needed:
        raise CheckpointError(
            f"The model's text table has {len(table)} rows, but its vocabulary needs {needed}. "
            "Use the vocab.json that belongs to the checkpoint."
        )
    rows = table.new_zeros(max(len(table), max(new.values()) + 1), *table.shape[1:])  # (V', D)
    # A published table may have more rows than its vocabulary has tokens.
    rows[: len(table)] = table
    # In float64, because this averages thousands of rows.
    overall = table[sorted(old.values())].double().mean(dim=0).to(table.dtype)
    for token, identifier in new.items():
        if token in old:
            rows[identifier] = table[old[token]]
        elif related.get(identifier):
            rows[identifier] = table[related[identifier]].double().mean(dim=0).to(table.dtype)
        else:
            rows[identifier] = overall
    return rows


class _Bpe(TypedDict):
    vocab: dict[str, int]
    merges: list[str | list[str]]


class _Growth:
    """A vocabulary that tokens are added to."""

    def __init__(self, vocab_json: str) -> None:
        self.new: dict[int, list[int]] = {}
        self._table = json.loads(vocab_json)
        self._model: _Bpe = self._table["model"]
        self._old = _ids_of(vocab_json)
        self._ids = dict(self._old)
        self._letters: set[str] = set()

    def vocab_json(self) -> str:
        return json.dumps(self._table, ensure_ascii=False)

    def add_letters(self, texts: Iterable[str]) -> None:
        seen = {letter for text in texts for letter in text if not letter.isspace()}
        self._letters = {letter for letter in seen if letter not in self._model["vocab"]}
        # Sorted, because ids follow this order, and that of a set differs between processes.
        for letter in sorted(self._letters):
            self._add(letter, _related_letters(letter, self._old))

    def add_languages(self, languages: Iterable[str]) -> None:
        # A new language starts from the mean of all known ones.
        others = list(language_tokens(self._old).values())
        for language in languages:
            token = language_token(language)
            entry = {"id": self._add(token, others), "special": True, "content": token}
            flags = ("single_word", "lstrip", "rstrip", "normalized")
            self._table["added_tokens"].append(entry | dict.fromkeys(flags, False))

    def learn_merges(self, texts: Sequence[str], limit: int) -> None:
        """Merge the most frequent pairs with a new letter, as long as a pair occurs twice."""
        if limit <= 0 or not self._letters:
            return
        words = _Words(self._words_of(texts), self._letters)
        for _ in range(limit):
            pair = words.most_frequent()
            if pair is None:
                return
            # Newer versions of the package write pairs, older ones text; a file keeps one form.
            as_text = any(isinstance(merge, str) for merge in self._model["merges"])
            self._model["merges"].append(" ".join(pair) if as_text else list(pair))
            merged = "".join(pair)
            # Different pairs can spell the same token.
            if merged not in self._ids:
                self._add(merged, [row for part in pair for row in self._rows_of(part)])
            words.merge(pair)  # updates only the words with this pair, or learning would be slow

    def _words_of(self, texts: Sequence[str]) -> Counter[tuple[str, ...]]:
        tokenizer = XttsTokenizer(self.vocab_json())
        words = Counter(word for text in texts for word in text.split())
        split: Counter[tuple[str, ...]] = Counter()
        for word, count in words.items():
            if not self._letters.isdisjoint(word):
                split[tuple(tokenizer.split(word))] += count
        return split

    def _rows_of(self, token: str) -> list[int]:
        identifier = self._ids[token]
        return self.new.get(identifier, [identifier])

    def _add(self, token: str, related: list[int]) -> int:
        identifier = max(self._ids.values()) + 1
        self._ids[token] = self._model["vocab"][token] = identifier
        self.new[identifier] = related
        return identifier


class _Words:
    """Words as lists of tokens, with counts of adjacent pairs that contain a new letter."""

    def __init__(self, words: Counter[tuple[str, ...]], letters: set[str]) -> None:
        self._letters = letters
        self._fitting: dict[tuple[str, str], bool] = {}
        self._words = [list(word) for word in words]
        self._weights = list(words.values())
        self._counts: Counter[tuple[str, str]] = Counter()
        self._homes: dict[tuple[str, str], set[int]] = defaultdict(set)
        for at in range(len(self._words)):
            self._count(at, 1)

    def most_frequent(self) -> tuple[str, str] | None:
        """Return the most frequent pair that occurs at least twice; ties go by spelling."""
        often = [(-count, pair) for pair, count in self._counts.items() if count > 1]
        return min(often)[1] if often else None

    def merge(self, pair: tuple[str, str]) -> None:
        for at in list(self._homes[pair]):
            self._count(at, -1)
            self._words[at] = _merged(self._words[at], pair)
            self._count(at, 1)

    def _count(self, at: int, sign: int) -> None:
        word = self._words[at]
        for pair in pairwise(word):
            if not self._fits(pair):
                continue
            self._counts[pair] += sign * self._weights[at]
            (self._homes[pair].add if sign > 0 else self._homes[pair].discard)(at)

    def _fits(self, pair: tuple[str, str]) -> bool:
        # The tokenizer separates words from marks before merging, so no pair may cross that border.
        # The unknown token stands for letters that cannot be merged.
        if pair not in self._fitting:
            joined = "".join(pair)
            self._fitting[pair] = (
                UNKNOWN not in pair
                and not self._letters.isdisjoint(joined)
                and all(map(_is_word, joined))
            )
        return self._fitting[pair]


def _is_word(letter: str) -> bool:
    # Letters, marks and digits, and the zero-width non-joiner within Persian words.
    return letter == "_" or letter == "\u200c" or unicodedata.category(letter)[0] in "LMN"


def _merged(word: list[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    at = 0
    while at < len(word):
        size = 2 if tuple(word[at : at + 2]) == pair else 1
        merged.append("".join(word[at : at + size]))
        at += size
    return merged


def _related_letters(letter: str, ids: dict[str, int]) -> list[int]:
    """Return the ids whose mean initializes a new letter.

    The first of these that exist: its base letter, a similar sound, its script, its category.
    """
    spelt = [
        unicodedata.normalize("NFKD", letter),
        _NEIGHBOURS.get(letter, ""),
        sounds_of(letter),
        romanize_hangul(letter),
    ]
    for spelling in spelt:
        rows = [ids[part] for part in spelling if part in ids and part.isalnum()]
        if rows:
            return rows
    kind, script = unicodedata.category(letter)[0], unicodedata.name(letter, "").split(" ")[0]
    same_kind = [other for other in ids if len(other) == 1 and _kind_of(other) == kind]
    same_script = [other for other in same_kind if unicodedata.name(other, "").startswith(script)]
    return [ids[other] for other in (same_script if kind == "L" and same_script else same_kind)]


def _kind_of(letter: str) -> str:
    return unicodedata.category(letter)[0]


def _cost(
    language: str, cleaned: list[str], before: XttsTokenizer, after: XttsTokenizer
) -> LanguageCost:
    characters = sum(map(len, cleaned)) or 1
    unknown = [before.unknown_letters(text) for text in cleaned]
    used = {token for text in cleaned for token in after.split(text)}
    letters = set().union(*unknown)
    return LanguageCost(
        language=language,
        clips=len(cleaned),
        clips_with_unknown=sum(map(bool, unknown)),
        unknown_characters=tuple(sorted(letters)),
        new_merges=sum(len(token) > 1 and token not in before.ids for token in used),
        needs_language_token=not before.knows(language),
        tokens_per_character_before=sum(len(before.split(text)) for text in cleaned) / characters,
        tokens_per_character_after=sum(len(after.split(text)) for text in cleaned) / characters,
    )


def _ids_of(vocab_json: str) -> dict[str, int]:
    ids = XttsTokenizer(vocab_json).ids
    return dict(sorted(ids.items(), key=lambda pair: pair[1]))

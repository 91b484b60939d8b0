"""Data for cleaning each language: abbreviations, symbols and forms of numbers.

The words are in `languages.json`, in their own scripts. For the 17 published languages they are
those that the published model was trained with, even where a native speaker would choose others.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rules:
    """The data of one language; the defaults are for languages without an entry."""

    abbreviations: tuple[tuple[re.Pattern[str], str], ...] = ()
    symbols: tuple[tuple[str, str], ...] = ()
    ordinal: re.Pattern[str] | None = None
    # The word of num2words between units and cents, where a round amount is cut. None: amounts of
    # money are read as symbol and number.
    cents: str | None = None
    thousands: str = ","
    decimals: bool = True
    # For languages that num2words lacks (Hindi) or supports with gaps (Amharic): the words for 0
    # to 99, the larger units, "point", and how the end of a number changes in an ordinal.
    small_numbers: tuple[str, ...] = ()
    large_numbers: tuple[tuple[int, str], ...] = ()
    point: str = ""
    ordinal_endings: tuple[tuple[str, str], ...] = ()


@cache
def rules_of(language: str) -> Rules:
    """Return the data of a language, or the defaults if it has no entry."""
    entry = _table().get(language)
    if entry is None:
        return Rules()
    ending = r"\." if entry.get("dotted", True) else r"\b"
    return Rules(
        abbreviations=tuple(
            (re.compile(rf"\b{short}{ending}", re.IGNORECASE), full)
            for short, full in entry["abbreviations"].items()
        ),
        symbols=tuple(entry["symbols"].items()),
        ordinal=re.compile(rf"([0-9]+)({entry['ordinal']})") if entry["ordinal"] else None,
        cents=entry["cents"] or None,
        thousands=entry.get("thousands", "."),
        decimals=entry.get("decimals", True),
        small_numbers=tuple(
            word.replace("_", " ") for word in entry.get("small_numbers", "").split()
        ),
        large_numbers=tuple(
            (int(unit), word) for unit, word in entry.get("large_numbers", {}).items()
        ),
        point=entry.get("point", ""),
        ordinal_endings=tuple(entry.get("ordinal_endings", {}).items()),
    )


@cache
def _table() -> dict[str, dict[str, Any]]:
    return json.loads(Path(__file__).with_name("languages.json").read_text(encoding="utf-8"))

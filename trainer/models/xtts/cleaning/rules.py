"""What a language needs to be read aloud, as data: abbreviations, symbols, forms of numbers.

The words lie in `languages.json`, in their own scripts. For the 17 published languages they are
those the published model was trained with, whether or not a speaker would choose them.
"""

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Rules:
    """One language's data; the defaults serve a language that nobody described yet."""

    abbreviations: tuple[tuple[re.Pattern[str], str], ...] = ()
    symbols: tuple[tuple[str, str], ...] = ()
    ordinal: re.Pattern[str] | None = None
    # What num2words writes between units and cents; a round sum is cut there. None: the sums of
    # money are read as symbol and number.
    cents: str | None = None
    thousands: str = ","
    decimals: bool = True
    # For languages in which num2words cannot count (Hindi) or counts with gaps (Amharic): the words
    # 0 to 99, the larger units, "point", and how the last letters of a number change in an ordinal.
    small_numbers: tuple[str, ...] = ()
    large_numbers: tuple[tuple[int, str], ...] = ()
    point: str = ""
    ordinal_endings: tuple[tuple[str, str], ...] = ()


@cache
def rules_of(language: str) -> Rules:
    """Return the data of a language; a language without any gets the defaults."""
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

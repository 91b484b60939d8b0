"""Romanize Japanese text with cutlet and its dictionary."""

from functools import cache
from typing import Any

from trainer.core.errors import MissingDependency


def to_romaji(text: str) -> str:
    """Write Japanese in Latin letters (Hepburn), in lower case.

    Raises:
        MissingDependency: cutlet or its dictionary is not installed.
    """
    try:
        from cutlet import Cutlet  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingDependency(
            "cutlet", "Japanese text", "pip install cutlet unidic-lite"
        ) from None
    return _reader(Cutlet).romaji(text).lower()


@cache
def _reader(cutlet: Any) -> Any:
    # Cached, because it loads a dictionary; its C code raises RuntimeError if none is installed.
    try:
        return cutlet()
    except RuntimeError:
        raise MissingDependency("unidic-lite", "Japanese text") from None

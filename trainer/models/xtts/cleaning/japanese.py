"""Japanese text to romaji, through cutlet and its dictionary."""

from functools import cache
from typing import Any

from trainer.errors import MissingDependency


def to_romaji(text: str) -> str:
    """Write Japanese in Latin letters (Hepburn), in lower case.

    Raises:
        MissingDependency: cutlet or its dictionary is not installed.
    """
    return _cutlet().romaji(text).lower()


@cache
def _cutlet() -> Any:
    try:
        from cutlet import Cutlet
    except ImportError:
        raise MissingDependency(
            "cutlet", "Japanese text", "pip install cutlet unidic-lite"
        ) from None
    try:
        return Cutlet()
    except RuntimeError:
        # The tagger starts without a dictionary only to fail.
        raise MissingDependency("unidic-lite", "Japanese text") from None

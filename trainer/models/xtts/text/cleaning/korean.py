"""Romanize Korean syllables letter by letter, from their code points.

This is the academic form of the Revised Romanization, which transliterates letters instead of
sounds. A hyphen separates two syllables if their letters could be split in several ways.
"""

from functools import cache

_INITIALS = (
    "g", "kk", "n", "d", "tt", "l", "m", "b", "pp", "s", "ss", "", "j", "jj", "ch", "k", "t", "p",
    "h",
)  # fmt: skip
_VOWELS = (
    "a", "ae", "ya", "yae", "eo", "e", "yeo", "ye", "o", "wa", "wae", "oe", "yo", "u", "wo", "we",
    "wi", "yu", "eu", "ui", "i",
)  # fmt: skip
_FINALS = (
    "", "g", "kk", "gs", "n", "nj", "nh", "d", "l", "lg", "lm", "lb", "ls", "lt", "lp", "lh", "m",
    "b", "bs", "s", "ss", "ng", "j", "ch", "k", "t", "p", "h",
)  # fmt: skip
_FIRST, _LAST = 0xAC00, 0xD7A3


def romanize_hangul(text: str) -> str:
    """Write Hangul syllables in Latin letters and leave everything else unchanged."""
    written: list[str] = []
    last_final: str | None = None
    for letter in text:
        if not _FIRST <= ord(letter) <= _LAST:
            written.append(letter)
            last_final = None
            continue
        # Unicode orders syllables by initial, then vowel, then final.
        rest, final = divmod(ord(letter) - _FIRST, len(_FINALS))
        initial, vowel = divmod(rest, len(_VOWELS))
        if last_final is not None and _needs_hyphen(last_final, _INITIALS[initial]):
            written.append("-")
        last_final = _FINALS[final]
        written.append(_INITIALS[initial] + _VOWELS[vowel] + last_final)
    return "".join(written)


@cache
def _needs_hyphen(final: str, initial: str) -> bool:
    if not initial:
        return True
    letters = final + initial
    ways = [
        at for at in range(len(letters)) if letters[:at] in _FINALS and letters[at:] in _INITIALS
    ]
    return len(ways) > 1

"""Clean Chinese for the published model: numbers as characters, marks as commas, then pinyin."""

import json
import re
import string
from functools import cache
from pathlib import Path

from trainer.core.errors import MissingDependency

_WORDS = json.loads(Path(__file__).with_name("chinese.json").read_text(encoding="utf-8"))
_DIGITS, _POINT, _YEAR, _MONTH = (_WORDS[key] for key in ("digits", "point", "year", "month"))
# The powers of ten that have a character, the largest first.
_UNITS = sorted(((power, unit) for unit, power in _WORDS["units"].items()), reverse=True)
_TEN = _UNITS[-1][1]
_LARGE_UNITS = {unit for _, unit in _UNITS} - {_TEN}

# Numbers are recognized as in coqui-tts, so that texts become what the model was trained on.
_DATE = re.compile(
    rf"(?<!\d)(?:((?:[089]|19\d|20\d)\d){_YEAR})?(?:(\d{{1,2}}){_MONTH}(?:(\d{{1,2}})([{_WORDS['day']}]))?)?"
)
_COUNT = rf"(\d+(?:\.\d+)?)(?=[{_WORDS['about']}]?(?:%s))"
_MONEY = re.compile(_COUNT % _WORDS["money"])
_MEASURE = re.compile(_COUNT % f"[{_WORDS['measures']}]|{_WORDS['metric']}")
_MOBILE = re.compile(r"(?<!\d)\+?(?:86 ?)?1(?:[38]\d|5[0-35-9]|7[678]|9[89])\d{8}(?!\d)")
_LANDLINE = re.compile(r"(?<!\d)(?:0(?:10|2[1-3]|[3-9]\d{2})-?)?[1-9]\d{6,7}(?!\d)")
_FRACTION = re.compile(r"(\d+)/(\d+)")
_PERCENT = re.compile("(\\d+(?:\\.\\d+)?)[%\uff05]")
_CODE = re.compile(r"\d{4,32}")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_BETWEEN_LETTERS = re.compile(f"([a-zA-Z]+){_DIGITS[2]}([a-zA-Z]+)")
# Full- and half-width quotes, dashes, brackets and stops.
_MARKS = (
    (0xB7, 0xB7), (0x2013, 0x2014), (0x2018, 0x2019), (0x201B, 0x201F), (0x2026, 0x2027),
    (0x3001, 0x3003), (0x3008, 0x3011), (0x3014, 0x301F), (0x3030, 0x3030), (0x303E, 0x303F),
    (0xFE4F, 0xFE4F), (0xFF01, 0xFF0D), (0xFF0F, 0xFF0F), (0xFF1A, 0xFF20), (0xFF3B, 0xFF40),
    (0xFF5B, 0xFF64),
)  # fmt: skip
_COMMAS = {ord(mark): "," for mark in string.punctuation} | {
    code: "," for first, last in _MARKS for code in range(first, last + 1)
}


def expand_chinese_numbers(text: str) -> str:
    """Write numbers as characters by their role (date, money, phone, count), marks as commas."""
    text = text.lstrip("^").rstrip("$")
    text = _DATE.sub(_date, text)
    text = _MONEY.sub(lambda match: _cardinal(match[1]), text)
    text = _MOBILE.sub(lambda match: _spell(match[0]), text)
    text = _LANDLINE.sub(lambda match: _spell(match[0]), text)
    text = _FRACTION.sub(lambda match: _part(match[1], _cardinal(match[2])), text)
    text = _PERCENT.sub(lambda match: _part(match[1], _WORDS["hundred"]), text)
    text = _MEASURE.sub(lambda match: _cardinal(match[1]), text)
    text = _CODE.sub(lambda match: _spell(match[0]), text)
    text = _NUMBER.sub(lambda match: _cardinal(match[0]), text)
    # Restore the digit in names such as "p2p".
    text = _BETWEEN_LETTERS.sub(r"\g<1>2\g<2>", text)
    return text.translate(_COMMAS)


def to_pinyin(text: str) -> str:
    """Write Chinese characters as pinyin, with the tone as a digit after each syllable.

    Raises:
        MissingDependency: pypinyin is not installed.
    """
    try:
        from pypinyin import Style, pinyin  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingDependency("pypinyin", "Chinese text") from None
    syllables = pinyin(text, style=Style.TONE3, heteronym=False, neutral_tone_with_five=True)
    return "".join(syllable[0] for syllable in syllables)


def _date(match: re.Match[str]) -> str:
    year, month, day, mark = match.groups()
    words = _spell(year) + _YEAR if year else ""
    words += _cardinal(month) + _MONTH if month else ""
    return words + (_cardinal(day) + mark if day else "")


def _part(number: str, whole: str) -> str:
    return whole + _WORDS["part_of"] + _cardinal(number)


def _spell(digits: str) -> str:
    return "".join(_DIGITS[int(digit)] for digit in digits if digit.isdigit())


@cache
def _cardinal(number: str) -> str:
    whole, _, part = number.partition(".")
    words = _whole(whole) if len(whole) > 1 else _spell(whole)
    words = _with_pairs(words)
    if words.startswith(_DIGITS[1] + _TEN):
        words = words[1:]
    if not part:
        return words
    return f"{words or _DIGITS[0]}{_POINT}{_spell(part)}"


def _whole(digits: str) -> str:
    """Return digits as characters, split at the largest unit; leading zeros become one zero."""
    bare = digits.lstrip("0")
    if not bare:
        return ""
    if len(bare) == 1:
        return (_DIGITS[0] if len(digits) > 1 else "") + _spell(bare)
    power, unit = next(pair for pair in _UNITS if pair[0] < len(bare))
    return _whole(digits[:-power]) + unit + _whole(bare[-power:])


def _with_pairs(words: str) -> str:
    """Replace "two" with "pair" before a large unit, at the start or after another large unit."""
    said = list(words)
    for at, word in enumerate(words[:-1]):
        begins = at == 0 or words[at - 1] in _LARGE_UNITS
        if word == _DIGITS[2] and begins and words[at + 1] in _LARGE_UNITS:
            said[at] = _WORDS["pair"]
    return "".join(said)

"""Write numbers as words, with num2words for the languages that it supports."""

import re
from collections.abc import Callable

from trainer.core.errors import MissingDependency
from trainer.models.xtts.text.cleaning.rules import Rules, rules_of

_NUMBER = re.compile("[0-9]+")
_DECIMAL = re.compile("[0-9]+[.,][0-9]+")
# In coqui-tts's pattern for dots, the unescaped dot matches any character as a separator, but only
# dots are removed afterwards. It is kept, because the model was trained with it.
_THOUSANDS = {
    ",": re.compile(r"\b\d{1,3}(,\d{3})*(\.\d+)?\b"),
    ".": re.compile(r"\b\d{1,3}(.\d{3})*(\,\d+)?\b"),
}
_MONEY = tuple(
    (currency, re.compile(rf"{sign}[0-9.,]*[0-9]+|[0-9.,]*[0-9]+{sign}"))
    for currency, sign in (("GBP", "\u00a3"), ("USD", r"\$"), ("EUR", "\u20ac"))
)
_WITHIN_NUMBER = re.compile(r"(?<=\d),(?=\d)")
# What num2words raises for numbers or languages that it does not support.
_UNSPEAKABLE = (
    NotImplementedError, ValueError, KeyError, TypeError, AttributeError, IndexError,
    ArithmeticError,
)  # fmt: skip


def expand_numbers(text: str, language: str) -> str:
    """Write amounts of money, decimals, ordinals and numbers as words.

    If num2words does not support a form, a simpler one is used: a number for an ordinal, single
    digits for a long number, and the digits themselves if nothing else works.

    Raises:
        MissingDependency: the text has digits, but num2words is not installed.
    """
    if not _NUMBER.search(text):
        return text
    rules = rules_of(language)
    if rules.small_numbers:
        text = _WITHIN_NUMBER.sub("", text)
    else:
        mark = rules.thousands
        text = _THOUSANDS[mark].sub(lambda match: match[0].replace(mark, ""), text)
    if rules.cents is not None:
        text = _expand_money(text, language, rules.cents)
    if rules.decimals:
        text = _DECIMAL.sub(lambda match: _decimal(match[0], language, rules), text)
    if rules.ordinal is not None:
        text = rules.ordinal.sub(lambda match: _ordinal(match, language, rules), text)
    return _NUMBER.sub(lambda match: _cardinal(match[0], language, rules), text)


def _expand_money(text: str, language: str, cents: str) -> str:
    # As in coqui-tts, an unsupported amount ends the search, also for the other currencies.
    try:
        for currency, pattern in _MONEY:
            text = pattern.sub(_spoken_money(language, currency, cents), text)
    except _UNSPEAKABLE:
        return text
    return text


def _spoken_money(language: str, currency: str, cents: str) -> Callable[[re.Match[str]], str]:
    def speak(match: re.Match[str]) -> str:
        amount = float(re.sub(r"[^\d.]", "", match[0].replace(",", ".")))
        words = _num2words(amount, lang=language, to="currency", currency=currency)
        # Whole amounts are spoken without their zero cents, as in coqui-tts.
        at = words.rfind(cents) if amount.is_integer() else -1
        return words[:at] if at >= 0 else words

    return speak


def _decimal(digits: str, language: str, rules: Rules) -> str:
    whole, part = re.split("[.,]", digits)
    if rules.small_numbers:
        spoken = " ".join(_count(int(digit), rules) for digit in part)
        return f"{_cardinal(whole, language, rules)} {rules.point} {spoken}"
    try:
        return _num2words(float(f"{whole}.{part}"), lang=language)
    except _UNSPEAKABLE:
        spoken = _cardinal(whole, language, rules)
        return digits if spoken == whole else f"{spoken}, {_digit_by_digit(part, language)}"


def _ordinal(match: re.Match[str], language: str, rules: Rules) -> str:
    if rules.ordinal_endings:
        return _with_ending(_cardinal(match[1], language, rules), rules)
    try:
        return _num2words(int(match[1]), lang=language, to="ordinal")
    except _UNSPEAKABLE:
        dot = "." if match[2] == "." else ""
        return _cardinal(match[1], language, rules) + dot


def _with_ending(words: str, rules: Rules) -> str:
    ending, changed = next(pair for pair in rules.ordinal_endings if words.endswith(pair[0]))
    return words.removesuffix(ending) + changed


def _cardinal(digits: str, language: str, rules: Rules) -> str:
    if rules.small_numbers:
        return _count(int(digits), rules)
    try:
        return _num2words(int(digits), lang=language)
    except _UNSPEAKABLE:
        return _digit_by_digit(digits, language)


def _digit_by_digit(digits: str, language: str) -> str:
    try:
        return " ".join(_num2words(int(digit), lang=language) for digit in digits)
    except _UNSPEAKABLE:
        return digits


def _count(number: int, rules: Rules) -> str:
    """Return a number in words of the language's own units: hundreds, thousands, lakhs."""
    if number < len(rules.small_numbers):
        return rules.small_numbers[number]
    unit, word = next(pair for pair in rules.large_numbers if pair[0] <= number)
    times, rest = divmod(number, unit)
    words = f"{_count(times, rules)} {word}"
    return f"{words} {_count(rest, rules)}" if rest else words


def _num2words(number: float, lang: str, to: str = "cardinal", currency: str = "") -> str:
    try:
        from num2words import num2words
    except ImportError:
        raise MissingDependency("num2words", "Reading numbers as words") from None
    if currency:
        return num2words(number, lang=lang, to=to, currency=currency)
    return num2words(number, lang=lang, to=to)

"""Clean text for XTTS: lower case, numbers and symbols as words, some scripts in Latin letters.

For the 17 published languages, `clean` returns what the published model was trained on.
"""

import re

from trainer.data.text.normalization import clean_text
from trainer.models.xtts.text.cleaning.amharic import amharic_g2p, clean_amharic
from trainer.models.xtts.text.cleaning.chinese import expand_chinese_numbers, to_pinyin
from trainer.models.xtts.text.cleaning.japanese import to_romaji
from trainer.models.xtts.text.cleaning.korean import romanize_hangul
from trainer.models.xtts.text.cleaning.numbers import expand_numbers
from trainer.models.xtts.text.cleaning.persian import clean_persian
from trainer.models.xtts.text.cleaning.rules import rules_of

PUBLISHED_LANGUAGES = (
    "en", "es", "fr", "de", "it", "pt", "pl", "tr", "ru", "nl", "cs", "ar", "zh", "hu", "ko",
    "ja", "hi",
)  # fmt: skip
# Three-letter codes in data sets, for languages that have rules of their own.
_ALIASES = {
    "amh": "am",
    "fas": "fa",
    "per": "fa",
    "kor": "ko",
    "jpn": "ja",
    "zho": "zh",
    "cmn": "zh",
}
# str.lower does not know Turkish: it turns dotted capital I into two code points. coqui-tts lists
# these three letters.
_TURKISH = str.maketrans({"\u0130": "i", "\u00d6": "\u00f6", "\u00dc": "\u00fc"})

__all__ = ["PUBLISHED_LANGUAGES", "amharic_g2p", "clean", "plain_language", "spell_out"]


def plain_language(language: str) -> str:
    """Return the two-letter code without its region: `zh-CN` is `zh`, `amh` is `am`."""
    code = re.split("[-_]", language.strip().lower())[0]
    return _ALIASES.get(code, code)


def clean(text: str, language: str, *, g2p: bool = False) -> str:
    """Return the text as the model reads it.

    Args:
        language: any code; the 17 published languages, Amharic and Persian have their own rules,
            others are lower-cased and get the numbers that num2words supports.
        g2p: write Amharic by its sounds in Latin letters; it has no effect on other languages.

    Raises:
        MissingDependency: Chinese, Japanese or numbers need a package that is not installed.
    """
    code = plain_language(language)
    text = spell_out(text, code)
    if code == "zh":
        return to_pinyin(text)
    if code == "ja":
        return to_romaji(text)
    if code == "ko":
        return romanize_hangul(text)
    return amharic_g2p(text) if code == "am" and g2p else text


def spell_out(text: str, language: str) -> str:
    """Return the text in lower case with its numbers and symbols as words, in its own script.

    Japanese is returned unchanged; as in coqui-tts, its numbers are not expanded.
    """
    code = plain_language(language)
    if code == "ja":
        return text
    if code not in PUBLISHED_LANGUAGES:
        text = _prepare_new(text, code)
    text = text.replace('"', "")
    if code == "tr":
        text = text.translate(_TURKISH)
    text = text.lower()
    text = expand_chinese_numbers(text) if code == "zh" else expand_numbers(text, code)
    return _expand_words(text, code)


def _prepare_new(text: str, code: str) -> str:
    text = clean_text(text, code)
    if code == "am":
        return clean_amharic(text)
    return clean_persian(text) if code == "fa" else text


def _expand_words(text: str, code: str) -> str:
    rules = rules_of(code)
    for pattern, word in rules.abbreviations:
        text = pattern.sub(word, text)
    for symbol, word in rules.symbols:
        text = text.replace(symbol, f" {word} ")
    return " ".join(text.split())

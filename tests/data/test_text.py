"""Text is unified before it becomes characters; espeak-ng speaks it where phonemes are asked."""

import shutil
import unicodedata

import pytest

from trainer.core.errors import DataError, MissingDependency
from trainer.data.text.normalization import clean_text, text_to_phonemes

needs_espeak = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="no espeak-ng here")
HANGUL = "\uc548\ub155\ud558\uc138\uc694"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u201cYes\u201d \u2014 it\u2019s", '"Yes" - it\'s'),
        ("  a\u00a0 b\n\tc\u3000d ", "a b c d"),
        ("zero\u200bwidth\ufeff so\u00adft", "zerowidth soft"),
        ("\uff21\uff22\uff01 wait\u2026", "AB! wait..."),
        (unicodedata.normalize("NFD", HANGUL), HANGUL),
        ("", ""),
    ],
)
@pytest.mark.fault("C11")
def test_what_is_written_in_several_ways_becomes_one(text: str, expected: str) -> None:
    assert clean_text(text) == expected
    assert clean_text(clean_text(text)) == clean_text(text)


def test_the_persian_non_joiner_stays_in_persian_only() -> None:
    word = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"

    assert clean_text(word, "fa") == word
    assert clean_text(word, "en") == word.replace("\u200c", "")


@needs_espeak
@pytest.mark.parametrize(
    ("language", "text", "marks"),
    [
        ("en", "Well, is it 3.5 km? Yes!", ",?!"),
        ("ko", f"{HANGUL}, \ubc18\uac11\uc2b5\ub2c8\ub2e4.", ",."),
        ("am", "\u1230\u120b\u121d\u1363 \u12f0\u1205\u1293 \u1290\u129d\u1362", ",."),
        ("fa", "\u0633\u0644\u0627\u0645\u060c \u062d\u0627\u0644 \u0634\u0645\u0627\u061f", ",?"),
    ],
)
def test_four_languages_are_spoken_with_their_pauses(language: str, text: str, marks: str) -> None:
    phonemes = text_to_phonemes([text], language)[0]

    assert "".join(letter for letter in phonemes if letter in ".,;:!?") == marks
    assert sum(letter.isalpha() for letter in phonemes) > 5
    assert not any("\u1100" <= letter <= "\ud7ff" or "\u0600" <= letter <= "\u06ff"
                   for letter in phonemes)  # fmt: skip


@needs_espeak
def test_a_batch_gives_what_each_text_gives_alone() -> None:
    texts = ["Hello there.", "", "77", "?!", "One, two; three.", "Hello there.", "x " * 900, "it's"]

    together = text_to_phonemes(texts, "en")

    assert together == [text_to_phonemes([text], "en")[0] for text in texts]
    assert together[1] == "" and together[0] == together[5] != ""


@needs_espeak
@pytest.mark.fault("F14")
def test_text_that_looks_like_an_option_or_a_command_is_only_text() -> None:
    plain, odd = text_to_phonemes(["help", "--help; $(reboot)"], "en")

    assert plain in odd


@needs_espeak
def test_a_language_that_is_not_spoken_is_a_sentence() -> None:
    with pytest.raises(DataError, match="does not support 'xx'"):
        text_to_phonemes(["Hello."], "xx")


def test_without_espeak_the_message_names_the_package(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MissingDependency, match="espeak-ng"):
        text_to_phonemes(["Hello."], "en")

"""The page's languages: every sentence is in each dictionary, and the dictionaries fit together."""

import re

import pytest

from tests.helpers.words import Dictionary, all_said, plain

LANGUAGES = ("ko", "am", "fa")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return all_said(tmp_path_factory.mktemp("words"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_sentence_of_the_page_is_translated(said: dict[str, str], language: str) -> None:
    known = Dictionary(language)

    missing = [
        f"{where}: {sentence}" for sentence, where in said.items() if not known.knows(sentence)
    ]

    assert not missing, f"add to webui/static/translations/{language}.json:\n" + "\n".join(missing)


def test_the_page_says_what_this_test_looks_for(said: dict[str, str]) -> None:
    places = {said["Start training"], said["Compare {}"], said["The queue has resumed."]}

    assert places == {"components", "scripts", "python"}
    assert len(said) > 500


def test_a_new_sentence_would_be_missed() -> None:
    known = Dictionary("ko")

    assert known.knows("Start training")
    assert not known.knows("Start something else")
    assert not known.knows("Unavailable here: The moon is full.")


@pytest.mark.parametrize("language", LANGUAGES)
def test_translations_keep_every_value(language: str) -> None:
    words = Dictionary(language).words

    for key, sentence in words.items():
        assert sorted(re.findall(r"\{[^}]*\}", key)) == sorted(
            re.findall(r"\{[^}]*\}", sentence)
        ), key
        assert sentence.count("**") % 2 == 0, key


def test_dictionaries_hold_the_same_sentences() -> None:
    keys = [set(Dictionary(language).words) for language in LANGUAGES]

    assert keys[0] == keys[1] == keys[2]


@pytest.mark.parametrize(("language", "letters"), [("ko", "가-힣"), ("am", "ሀ-፿"), ("fa", "آ-ی")])
def test_translations_are_written_in_their_script(language: str, letters: str) -> None:
    words = Dictionary(language).words

    latin = [key for key, sentence in words.items() if not re.search(f"[{letters}]", sentence)]

    assert all(len(re.findall(r"[A-Za-z]{2,}", plain(key))) <= 2 for key in latin), latin

"""XTTS reads text as the original does, and learns letters and languages it lacks."""

import json
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.core.errors import CheckpointError, DataError, MissingDependency
from trainer.models.xtts.text.cleaning import (
    PUBLISHED_LANGUAGES,
    amharic_g2p,
    clean,
    plain_language,
    spell_out,
)
from trainer.models.xtts.text.cleaning.chinese import to_pinyin
from trainer.models.xtts.text.cleaning.korean import romanize_hangul
from trainer.models.xtts.text.tokenizer import (
    SPACE,
    START,
    STOP,
    UNKNOWN,
    XttsTokenizer,
    language_token,
)
from trainer.models.xtts.text.vocabulary import extend_vocabulary, map_rows

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "xtts_text.json").read_text("utf-8"))
NEEDS = {"zh": "pypinyin", "ja": "cutlet"}
SELAM = "\u1230\u120b\u121d \u1208\u12d3\u1208\u121d\u1362"
PERSIAN = "\u0633\u0644\u0627\u0645\u060c \u0686\u0637\u0648\u0631\u06cc \u067e\u0698\u06af\u061f"
KOREAN = "\uc548\ub155\ud558\uc138\uc694"


def golden(language: str) -> list[dict[str, Any]]:
    return [row for row in GOLDEN["sentences"] if row["language"] == language]


def toy(*texts: str, languages: tuple[str, ...] = ("en", "de")) -> str:
    return _toy_vocab([*texts, "abcdefghijklmnopqrstuvwxyz .,!?"], languages)


def tokens_of(vocab_json: str) -> dict[int, str]:
    return {number: token for token, number in XttsTokenizer(vocab_json).ids.items()}


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda package: monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize("language", PUBLISHED_LANGUAGES)
def test_the_table_holds_at_least_six_sentences_of_each_published_language(language: str) -> None:
    assert len(golden(language)) >= 6


@pytest.mark.parametrize("language", [code for code in PUBLISHED_LANGUAGES if code != "ja"])
def test_text_is_spelt_out_as_by_the_original(language: str) -> None:
    rows = golden(language)

    spelt = [spell_out(row["text"], language) for row in rows]

    assert spelt == [row["spelt"] for row in rows]


@pytest.mark.parametrize("language", PUBLISHED_LANGUAGES)
def test_text_is_read_and_encoded_as_by_the_original(language: str) -> None:
    if language in NEEDS:
        pytest.importorskip(NEEDS[language])
    tokenizer = XttsTokenizer(json.dumps(GOLDEN["vocabulary"]))
    rows = golden(language)

    read = [tokenizer.clean(row["text"], language) for row in rows]
    ids = [tokenizer.encode(row["text"], language) for row in rows]

    assert read == [row["read"] for row in rows]
    assert ids == [row["ids"] for row in rows]


def test_the_golden_encodings_hold_unknown_tokens_too() -> None:
    assert any(1 in row["ids"] for row in GOLDEN["sentences"])


@pytest.mark.parametrize("row", GOLDEN["deviations"], ids=lambda row: row["language"])
def test_what_differs_from_the_original_differs_on_purpose(row: dict[str, Any]) -> None:
    assert spell_out(row["text"], row["language"]) == row["ours"]
    assert row["ours"] != row["upstream"]
    assert row["reason"]


def test_regions_and_three_letter_codes_mean_the_plain_language() -> None:
    assert plain_language("zh-CN") == "zh"
    assert plain_language("pt_BR") == "pt"
    assert plain_language("amh") == "am"


def test_a_language_without_data_of_its_own_gets_lower_case_and_keeps_what_is_unsayable() -> None:
    assert clean("Habari  WATU 12", "sw") == "habari watu 12"
    assert clean("Hej 12", "sv") == "hej tolv"


def test_numbers_without_num2words_say_what_to_install(without: Any) -> None:
    without("num2words")

    assert clean("No digits here.", "en") == "no digits here."
    with pytest.raises(MissingDependency, match="pip install num2words"):
        clean("5 digits", "en")


def test_chinese_and_japanese_without_their_packages_say_what_to_install(without: Any) -> None:
    without("pypinyin")
    without("cutlet")

    with pytest.raises(MissingDependency, match="pip install pypinyin"):
        to_pinyin("\u4f60")
    with pytest.raises(MissingDependency, match="pip install cutlet unidic-lite"):
        clean("\u3042", "ja")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("10\u4e2a", "\u5341\u4e2a"),
        ("1005\u4e2a", "\u4e00\u5343\u96f6\u4e94\u4e2a"),
        ("12000\u4e2a", "\u4e00\u4e07\u4e24\u5343\u4e2a"),
        ("2000\u5143", "\u4e24\u5343\u5143"),
        ("2000", "\u4e8c\u96f6\u96f6\u96f6"),
        ("1998\u5e74", "\u4e00\u4e5d\u4e5d\u516b\u5e74"),
    ],
)
def test_chinese_numbers_are_counted_before_a_measure_and_spelt_elsewhere(
    number: str, words: str
) -> None:
    assert spell_out(number, "zh") == words


def test_korean_syllables_are_parted_where_letters_could_be_parted_otherwise() -> None:
    assert romanize_hangul("\ubb3c\uc5ff") == "mul-yeos"
    assert romanize_hangul("\ud55c\uad6d OK") == "hangug OK"


AMHARIC_WORDS = {
    "\u1230\u120b\u121d": "s\u00e4lam",  # peace
    "\u12a0\u121b\u122d\u129b": "amar\u0148a",  # Amharic
    "\u12a2\u1275\u12ee\u1335\u12eb": "ityop'ya",  # Ethiopia
    "\u120d\u1305": "l\u0131j",  # child
    "\u12ad\u1265\u122d": "k\u0131b\u0131r",  # honour
    "\u1275\u121d\u1205\u122d\u1275": "t\u0131mh\u0131rt",  # lesson
    "\u12f5\u1295\u130b\u12ed": "d\u0131ngay",  # stone
    "\u1218\u1295\u130d\u1235\u1275": "m\u00e4ng\u0131st",  # state
    "\u12a0\u1295\u12f5": "and",  # one
    "\u12a5\u1295\u12f4\u1275": "\u0131ndet",  # how
    "\u124b\u1295\u124b": "qwanqwa",  # language
    "\u1313\u12f0\u129b": "gwad\u00e4\u0148a",  # friend
    "\u124d\u1325\u122d": "qw\u0131t'\u0131r",  # number, labialised
    "\u1340\u1210\u12ed": "ts'\u00e4hay",  # sun
    "\u12a7\u1228": "\u00e4r\u00e4",  # well
}


@pytest.mark.parametrize(("word", "sounds"), AMHARIC_WORDS.items())
def test_amharic_words_are_written_by_their_sounds(word: str, sounds: str) -> None:
    assert clean(word, "am", g2p=True) == sounds


def test_every_ethiopic_syllable_of_the_amharic_rows_has_a_sound_in_latin_letters() -> None:
    syllables = [chr(code) for code in range(0x1200, 0x135B) if unicodedata.name(chr(code), "")]

    sounds = [amharic_g2p(syllable) for syllable in syllables]

    assert [sound for sound in sounds if not sound or sound[0] > "\u024f"] == []


def test_amharic_rows_of_one_sound_become_one_row() -> None:
    assert clean("\u1210\u1283 \u1220 \u12d3 \u1340", "am") == "\u1200\u1200 \u1230 \u12a0 \u1338"


def test_ethiopic_marks_and_numerals_are_read() -> None:
    assert clean("\u1230\u120b\u121d\u1361\u1208\u121d\u1363 \u1290\u12cd\u1362", "am") == (
        "\u1230\u120b\u121d \u1208\u121d, \u1290\u12cd."
    )
    assert clean("\u1372\u1371\u137b\u137a\u1371", "am") == clean("1999", "am")
    assert clean("\u137b", "am") == clean("100", "am")
    assert clean("\u137c", "am") == clean("10000", "am")


def test_amharic_numbers_hold_ethiopic_letters_only() -> None:
    words = clean("1999 1000000 12.5 3\u129b", "am")

    assert all(letter == " " or "\u1200" <= letter <= "\u135a" for letter in words)
    assert words.endswith("\u1236\u1235\u1270\u129b")


def test_persian_letters_and_digits_of_arabic_keyboards_are_unified() -> None:
    assert clean("\u0643\u064a", "fa") == "\u06a9\u06cc"
    assert clean("\u06f2\u06f5\u066a", "fa") == clean("25%", "fa")
    assert (
        clean("\u0645\u06cc\u200c\u0631\u0648\u0645", "fa")
        == "\u0645\u06cc\u200c\u0631\u0648\u0645"
    )


def test_a_text_opens_with_its_language_and_spaces_are_tokens() -> None:
    tokenizer = XttsTokenizer(toy(languages=("en", "zh")))
    tokens = tokens_of(tokenizer.vocab_json)

    ids = tokenizer.encode("The Inn", "en-GB")

    assert [tokens[number] for number in ids] == ["[en]", "the", "[SPACE]", "in", "n"]
    assert tokenizer.languages == ["en", "zh-cn"]
    assert (tokenizer.stop, tokenizer.start) == (0, 261)
    assert tokenizer.size == max(tokens) + 1


def test_unknown_characters_and_languages_are_named() -> None:
    tokenizer = XttsTokenizer(toy())

    assert tokenizer.unknown("plain", "en") == []
    assert tokenizer.unknown("na\u00efve ~", "en") == ["\u00ef", "~"]
    assert tokenizer.unknown("hei", "fi") == ["[fi]"]
    with pytest.raises(DataError, match="'fi'.*en, de"):
        tokenizer.encode("hei", "fi")


@pytest.mark.parametrize(
    ("vocab_json", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "no BPE model"),
        ('{"model": {"type": "BPE"}}', "no ids"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}', "'b' is not a token"),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}', r"\[STOP\]"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused_with_the_reason(
    vocab_json: str, reason: str
) -> None:
    with pytest.raises(CheckpointError, match=reason):
        XttsTokenizer(vocab_json)


@pytest.mark.parametrize(
    ("text", "language"), [(SELAM, "am"), (PERSIAN, "fa"), (KOREAN, "ko"), ("5 ~ \u00e9", "sw")]
)
def test_an_extended_vocabulary_reads_the_text_that_it_was_extended_by(
    text: str, language: str
) -> None:
    before = toy()

    extension = extend_vocabulary(before, [(text, language)])
    tokenizer = XttsTokenizer(extension.vocab_json)

    assert XttsTokenizer(before).unknown(text, language) != []
    assert tokenizer.unknown(text, language) == []
    assert 1 not in tokenizer.encode(text, language)
    assert tokens_of(extension.vocab_json).items() >= tokens_of(before).items()
    assert set(extension.new) == set(tokens_of(extension.vocab_json)) - set(tokens_of(before))


def test_korean_needs_a_language_token_only_for_it_is_read_in_latin_letters() -> None:
    extension = extend_vocabulary(toy("-"), [(KOREAN, "ko")])

    assert extension.report[0].new_tokens == 1
    assert XttsTokenizer(extension.vocab_json).languages == ["en", "de", "ko"]


def test_learnt_merges_shorten_the_new_language_and_leave_old_texts_alone() -> None:
    before = toy()
    texts = [(SELAM, "am"), (SELAM, "am"), ("the inner thing", "en")]

    letters = extend_vocabulary(before, texts)
    merged = extend_vocabulary(before, texts, limit=5)
    few = extend_vocabulary(before, texts, limit=2)

    old, new = XttsTokenizer(before), XttsTokenizer(merged.vocab_json)
    assert len(new.encode(SELAM, "am")) < len(XttsTokenizer(letters.vocab_json).encode(SELAM, "am"))
    assert len(few.new) == len(letters.new) + 2
    assert new.encode("the inner thing", "en") == old.encode("the inner thing", "en")
    assert new.unknown(SELAM, "am") == []


def test_merges_never_cross_words_or_marks() -> None:
    extension = extend_vocabulary(toy(), [(SELAM, "am")] * 3, limit=100)

    learnt = [tokens_of(extension.vocab_json)[number] for number in extension.new]
    assert all(len(token) == 1 or token == "[am]" or token.isalpha() for token in learnt)
    assert any(len(token) > 2 and token.isalpha() for token in learnt)


def test_extending_twice_adds_nothing_and_gives_the_same_as_once() -> None:
    texts = [(SELAM, "am"), (PERSIAN, "fa")]

    once = extend_vocabulary(toy(), texts, limit=3)
    again = extend_vocabulary(once.vocab_json, texts, limit=3)

    assert again.new == {}
    assert json.loads(again.vocab_json) == json.loads(once.vocab_json)
    assert extend_vocabulary(toy(), texts, limit=3) == once


def test_the_published_form_of_merges_is_kept() -> None:
    table = json.loads(toy())
    table["model"]["merges"] = [merge.split(" ") for merge in table["model"]["merges"]]

    pairs = extend_vocabulary(json.dumps(table), [(SELAM, "am")] * 2, limit=1)
    texts = extend_vocabulary(toy(), [(SELAM, "am")] * 2, limit=1)

    assert isinstance(json.loads(pairs.vocab_json)["model"]["merges"][-1], list)
    assert isinstance(json.loads(texts.vocab_json)["model"]["merges"][-1], str)


def test_new_rows_are_related_to_letters_of_like_shape_or_sound() -> None:
    before = toy("\u0628")
    ids = XttsTokenizer(before).ids

    extension = extend_vocabulary(
        before, [("\u00e9\u12ab", "sw"), ("\u067e", "fa"), ("\u12ab", "am")]
    )
    new = {tokens_of(extension.vocab_json)[number]: rows for number, rows in extension.new.items()}

    assert new["\u00e9"] == [ids["e"]]
    assert new["\u12ab"] == [ids["k"], ids["a"]]
    assert new["\u067e"] == [ids["\u0628"]]
    assert new["[am]"] == [ids["[en]"], ids["[de]"]]


def test_rows_follow_their_tokens_and_new_rows_start_from_means() -> None:
    before = toy()
    extension = extend_vocabulary(before, [(SELAM, "am")], limit=3)
    table = torch.randn(
        XttsTokenizer(before).size + 3, 4, generator=torch.Generator().manual_seed(0)
    )

    rows = map_rows(table, before, extension.vocab_json, extension.new)

    old = sorted(tokens_of(before))
    assert torch.equal(rows[old], table[old])
    assert len(rows) == max(XttsTokenizer(extension.vocab_json).size, len(table))
    for number, related in extension.new.items():
        torch.testing.assert_close(rows[number], table[related].mean(dim=0))


def test_rows_move_when_the_other_vocabulary_orders_its_tokens_otherwise() -> None:
    before, after = _toy_vocab(["ab"], ["en"]), _toy_vocab(["Aab"], ["en"])
    bias = torch.arange(float(XttsTokenizer(before).size))

    rows = map_rows(bias, before, after, {})

    old, new = XttsTokenizer(before).ids, XttsTokenizer(after).ids
    assert rows[new["a"]] == bias[old["a"]]
    assert rows[new["b"]] == bias[old["b"]]
    torch.testing.assert_close(rows[new["A"]], bias[list(old.values())].mean())


def test_a_table_smaller_than_its_vocabulary_is_refused() -> None:
    with pytest.raises(CheckpointError, match="10 rows.*vocab.json"):
        map_rows(torch.zeros(10, 2), toy(), toy(), {})


def test_the_report_says_what_each_language_costs() -> None:
    texts = [("\u1230\u1230", "am"), ("\u1230\u1230", "amh"), ("plain", "en")]

    amharic, english = extend_vocabulary(toy(), texts, limit=1).report

    assert (amharic.language, amharic.clips, amharic.clips_with_unknown) == ("am", 2, 2)
    assert amharic.unknown_characters == ("\u1230",)
    assert amharic.new_tokens == 3  # the letter, its pair, the language
    assert (amharic.tokens_per_character_before, amharic.tokens_per_character_after) == (1, 0.5)
    assert (english.new_tokens, english.clips_with_unknown) == (0, 0)


def test_amharic_by_sounds_needs_few_new_tokens() -> None:
    vocab = toy("\u00e4\u0131\u0148\u0161\u010d\u017e'")

    by_letters = extend_vocabulary(vocab, [(SELAM, "am")])
    by_sounds = extend_vocabulary(vocab, [(SELAM, "am")], amharic_g2p=True)

    assert by_sounds.report[0].new_tokens == 1 < by_letters.report[0].new_tokens
    tokenizer = XttsTokenizer(by_sounds.vocab_json, amharic_g2p=True)
    assert tokenizer.clean(SELAM, "am") == "s\u00e4lam l\u00e4al\u00e4m."
    assert 1 not in tokenizer.encode(SELAM, "am")


def _toy_vocab(texts: Sequence[str], languages: Sequence[str]) -> str:
    """Return a small vocabulary in the published format: the letters of the texts, a few merges.

    The special tokens have their published ids, such as 261 for `[START]`.
    """
    letters = sorted({letter for text in texts for letter in text if not letter.isspace()})
    ids: dict[str, int] = {STOP: 0, UNKNOWN: 1, SPACE: 2}
    merges = []
    for letter in letters:
        ids[letter] = _free_id(ids)
    for left, right in (("t", "h"), ("e", "r"), ("i", "n"), ("th", "e")):
        if left in ids and right in ids:
            merges.append(f"{left} {right}")
            ids[left + right] = _free_id(ids)
    names = [STOP, UNKNOWN, SPACE, START]
    ids[START] = 261
    for language in dict.fromkeys(map(plain_language, languages)):
        name = language_token(language)
        ids[name] = _free_id(ids, 259)
        names.append(name)
    return _vocab_json(ids, merges, names)


def _free_id(ids: dict[str, int], first: int = 3) -> int:
    taken = set(ids.values()) | {261}  # reserved for [START]
    return next(number for number in range(first, first + len(taken) + 1) if number not in taken)


def _vocab_json(ids: dict[str, int], merges: list[str], names: list[str]) -> str:
    added = [
        {
            "id": ids[name], "special": True, "content": name, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False,
        }
        for name in names
    ]  # fmt: skip
    model = {
        "type": "BPE", "dropout": None, "unk_token": UNKNOWN, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "vocab": ids, "merges": merges,
    }  # fmt: skip
    table = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None,
        "decoder": None, "model": model,
    }  # fmt: skip
    return json.dumps(table, ensure_ascii=False)

"""What a model can use of the recordings, as the page tells it."""

from pathlib import Path

import pytest

from trainer.config.resolve import find_family
from trainer.core.errors import RunError
from trainer.core.run_config import DataConfig
from trainer.data.lists.manifest import read_manifest
from trainer.data.text.charset_coverage import describe_charset_coverage
from webui.views.compatibility_check import describe_fitness, judge_for

DEMO = Path(__file__).parent.parent.parent / "assets" / "demo"


def write_list(path: Path, texts: dict[str, str]) -> DataConfig:
    """Write a list of demo clips with texts and their languages."""
    lines = ["audio_file|text|speaker_name|language"]
    lines += [
        f"{DEMO}/clips/hana/train_{number:03}.ogg|{text}|hana|{language}"
        for number, (text, language) in enumerate(texts.items(), 1)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return DataConfig(train_csv=str(path), eval_fraction=0.0)


def test_the_page_tells_what_is_left_out_and_what_a_language_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "cache"))
    amharic = "\u1230\u120b\u121d <b>"
    data = write_list(
        tmp_path / "a.csv", {"Good morning.": "en", "Snow \u2603 <i>falls</i>": "en", amharic: "am"}
    )

    found = judge_for("xtts", "", data)
    page = describe_fitness(found, "XTTS v2")

    assert [row["line"] for row in found["left_out"]] == [3]
    assert "can use <b>2</b> of 3 clips" in page
    assert "has no token for \u2603" in page
    assert "<b>am</b> adds" in page and "\u1230" in page
    letters = {letter["letter"]: letter["clips"] for letter in found["alphabet"]["letters"]}
    assert letters["\u2603"] == 1 and letters["\u1230"] == 1
    assert found["alphabet"]["examples"][0]["line"] in (3, 4)
    assert "snowman" in page and 'class="piece unknown">\u2603' in page
    assert "<i>" not in page and "Snow \u2603 &lt;i&gt;falls" in page


def test_a_base_that_is_none_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "cache"))
    data = write_list(tmp_path / "a.csv", {"Good morning.": "en"})

    with pytest.raises(RunError, match="contains no XTTS v2 weights. Choose a folder"):
        judge_for("xtts", str(tmp_path), data)


@pytest.mark.fault("C10")
def test_a_voice_with_a_base_tells_letters_new_to_it_and_how_it_reads(tmp_path: Path) -> None:
    base = Path(__file__).parent.parent.parent / "assets" / "base"
    family = find_family("fastspeech2")
    clips = read_manifest(
        write_list(
            tmp_path / "a.csv",
            {"Good Morning\u201d": "en", "Cr\u00e8me br\u00fbl\u00e9e \u2603 \u03b1": "en"},
        )
    ).clips

    found = describe_charset_coverage(family, base, family.options(), clips)

    assert [letter["letter"] for letter in found["letters"]] == ["\u2603", "\u03b1"]
    assert found["letters"][1]["name"] == "greek small letter alpha"
    assert found["minutes"] == pytest.approx(clips[1].duration_s / 60)
    assert found["examples"][1]["cleaned"] == 'Good Morning"'
    assert "".join(found["examples"][1]["pieces"]) == 'good morning"'


def test_phonemes_are_shown_as_they_are_read() -> None:
    family = find_family("fastspeech2")

    reading = family.preview_texts(None, family.options(tokens="phonemes"), [("Hello.", "en")])[0]

    assert "".join(reading.pieces).startswith("h\u0259l")
    assert reading.unknown == ()


def test_bytes_stand_for_letters_without_a_model_of_pieces() -> None:
    family = find_family("indextts2")

    reading = family.preview_texts(None, family.options(), [("a\u00e9", "fr")])[0]

    assert reading.pieces == ("41", "c3", "89")

"""What a model can use of the recordings, as the page tells it."""

from pathlib import Path

import pytest

from trainer.config import DataConfig
from trainer.errors import RunError
from webui.fitness import describe_fitness, judge_for

DEMO = Path(__file__).parent.parent / "assets" / "demo"


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
    assert "does not know \u2603" in page
    assert "<b>am</b> adds" in page and "\u1230" in page
    assert "<i>" not in page and "Snow \u2603 &lt;i&gt;falls" in page


def test_a_base_that_is_none_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIMBRE_CACHE", str(tmp_path / "cache"))
    data = write_list(tmp_path / "a.csv", {"Good morning.": "en"})

    with pytest.raises(RunError, match="holds no XTTS v2 weights. Give a folder"):
        judge_for("xtts", str(tmp_path), data)

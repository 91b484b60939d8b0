"""Names of files, folders, speakers and columns that are markup: shown as words on every road."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.clips import write_tone
from trainer.core.run_config import DataConfig
from trainer.data.lists.findings import find_outliers
from trainer.data.lists.manifest import Manifest, read_manifest
from trainer.data.lists.preview import preview_list
from webui.actions import as_shown
from webui.views.clip_table import describe_columns, findings_table, report
from webui.views.compatibility_check import describe_charset_coverage, describe_fitness
from webui.views.markup import escape_html

EVIL = "<img src=x onerror=alert(1)>${alert(2)}{{alert(3)}}`\"'&"
_OURS = {
    "b", "bdi", "br", "button", "div", "i", "p", "small", "span", "table", "tbody", "td", "th",
    "thead", "tr",
}  # fmt: skip


class Seen(HTMLParser):
    """Collects what a browser would make of HTML: its elements, their attributes, its words."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        """Note words."""
        self.words += data


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """A list whose own name, folder, files, speaker, columns and language are markup."""
    folder = tmp_path / EVIL
    write_tone(folder / f"{EVIL}.wav")
    write_tone(folder / "b.wav", 0.05)
    path = folder / f"list {EVIL}.csv"
    lines = [
        f"audio_file|text|speaker_name|{EVIL}",
        f"{EVIL}.wav|Hello {EVIL}|{EVIL}|{EVIL}",
        f"gone {EVIL}.wav|Hello.|{EVIL}|",
        f"../{EVIL}.wav|Hello.|ann|",
        "b.wav|Hello.|ann|",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return read_manifest(DataConfig(train_csv=str(path), eval_fraction=0.0))


def _roads(manifest: Manifest) -> dict[str, str]:
    """Return the HTML of every function that makes some from a stranger's words."""
    path = Path(manifest.sources[0].path)
    letter: dict[str, Any] = {"name": EVIL, "letter": EVIL, "clips": 1, "minutes": 0.1}
    example = {"line": 2, "text": EVIL, "cleaned": EVIL, "pieces": [EVIL], "unknown": [EVIL]}
    alphabet = {"letters": [letter], "examples": [example], "minutes": 0.1}
    cost: dict[str, Any] = {
        "language": EVIL, "unknown_characters": [EVIL], "new_merges": 1, "clips": 1,
        "needs_language_token": True, "clips_with_unknown": 1, "tokens_per_character_after": 1.0,
    }  # fmt: skip
    fitness: dict[str, Any] = {
        "left_out": [{"line": 2, "text": EVIL, "reason": EVIL, "minutes": 0.1}],
        "clips": [], "language_costs": [cost], "alphabet": alphabet,
    }  # fmt: skip
    return {
        "report": report(manifest),
        "findings": findings_table(manifest, find_outliers(manifest.clips, {}), EVIL),
        "columns": describe_columns(preview_list(path), path.name),
        "no columns": describe_columns(None, path.name),
        "fitness": describe_fitness(fitness, "A model"),
        "alphabet": describe_charset_coverage(alphabet),
    }


def test_a_name_that_is_markup_is_words_on_every_road(manifest: Manifest) -> None:
    assert len(manifest.clips) >= 1 and len(manifest.problems) >= 2

    for road, html in _roads(manifest).items():
        seen = Seen(html)
        assert seen.tags <= _OURS, road
        assert not {name for name in seen.attributes if name.startswith(("on", "src"))}, road
        # The template language that Gradio runs over HTML finds nothing to carry out either.
        assert not any(mark in html for mark in ("${", "{{", "`")), road


@pytest.mark.parametrize("road", ["report", "columns", "no columns", "fitness"])
def test_the_name_is_shown_as_it_is(manifest: Manifest, road: str) -> None:
    assert "<img src=x onerror=alert(1)>${alert(2)}" in Seen(_roads(manifest)[road]).words


def test_sentences_with_such_a_name_are_words_in_toasts_too(manifest: Manifest) -> None:
    for problem in manifest.problems:
        shown = as_shown(str(problem))
        assert "<" not in shown
        assert Seen(shown).words == str(problem)


def test_the_guard_of_this_test_sees_what_is_not_escaped() -> None:
    assert "img" in Seen(f"<b>{EVIL}</b>").tags
    assert Seen(escape_html(EVIL)).words == EVIL

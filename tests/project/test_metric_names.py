"""Metric names are spelled once, in trainer/core/metrics.py; everything else imports them."""

import re
from pathlib import Path

import pytest

from trainer.core.metrics import METRICS, TRAIN_LOSS, VAL_LOSS

ROOT = Path(__file__).resolve().parents[2]
REGISTRY = "trainer/core/metrics.py"
SCRIPTS = "webui/static/js/charts/metrics.js"
"""The scripts get the table as JSON; this is the only module that names metrics."""
FOLDERS = ("trainer", "webui", "benchmarks", "assets")

_NAMES = "|".join(map(re.escape, METRICS))
_SPELLED = {
    # A whole name in quotes, or the start of the name of a part of a loss.
    suffix: re.compile(rf"([{quotes}])(?:(?:{_NAMES})\1|(?:{TRAIN_LOSS}|{VAL_LOSS})/)")
    # Backquotes are strings in JavaScript only; in Python they are part of a docstring.
    for suffix, quotes in ((".py", "\"'"), (".js", "\"'`"))
}


def _spellings() -> dict[str, list[str]]:
    """Return the names that each Python and JavaScript file spells, by path."""
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.*"))]
    found = {}
    for path in paths:
        name = path.relative_to(ROOT).as_posix()
        if path.suffix in _SPELLED and name not in (REGISTRY, SCRIPTS):
            text = path.read_text(encoding="utf-8")
            found[name] = [match[0] for match in _SPELLED[path.suffix].finditer(text)]
    return found


def test_no_module_spells_the_name_of_a_metric() -> None:
    assert {name: words for name, words in _spellings().items() if words} == {}


@pytest.mark.parametrize(
    ("suffix", "line"),
    [
        (".py", 'x["train/loss"]'),
        (".py", "x['val/loss']"),
        (".py", 'f"train/loss/{name}"'),
        (".js", "draw(`perf/memory_gib`)"),
    ],
)
def test_every_kind_of_quotes_is_found(suffix: str, line: str) -> None:
    assert _SPELLED[suffix].search(line)

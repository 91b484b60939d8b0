"""Every sentence that the page says, found in its components, its scripts and its Python.

A sentence with values in it becomes one with `{}` in their places, as the keys of the dictionaries
do. What cannot be words for people (names of files, classes, columns) is told apart by its form;
the few that look like words are listed in `NOT_SAID`.
"""

import ast
import asyncio
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from tests.helpers.page import make_studio
from trainer.config.presets import PRESETS
from trainer.config.schedules import SCHEDULES
from trainer.core.metrics import METRICS, metrics_of
from trainer.core.options import describe
from trainer.core.registry import discover
from trainer.core.run_config import DataConfig, TrainingConfig
from trainer.core.specs import ModelFamily, Optimization, OptimizerSpec
from trainer.race.choices import RaceChoices
from webui.forms.form import describe_entry
from webui.page import build_page
from webui.tabs.race import NOT_SHOWN

PROJECT = Path(__file__).resolve().parent.parent.parent
WORDS = PROJECT / "webui" / "static" / "translations"
SAID_IN_TERMINALS = ("cli.py", "launch.py")
"""What starts the page speaks to a terminal, in English."""
SAID_BY_PYTHON = (
    "webui/**/*.py",
    "trainer/callbacks/alerts.py",
    "trainer/callbacks/instability.py",
    "trainer/training/nan_recovery.py",
    "trainer/data/lists/findings.py",
    "trainer/data/lists/listing.py",
    "trainer/data/audio/audio_io.py",
    "trainer/data/lists/manifest.py",
)
NOT_SAID = {
    # Parts of sentences that the dictionaries hold whole.
    ", {} s per step, {} for {} steps", ", {}x as fast", "Saved {} rows as {}.{}", "{} Hz",
    "No rows{}.", "Rows {} to {} of {}{}, page {} of {}.",
    "The largest step takes about {} of {} GB", "Open {}", "First sound after {}",
    "{} GB free on the runs disk{}", "{} {} at {}, {}", "text changed", "texts changed",
    "row excluded", "rows excluded", "{}Text as the model sees it",
    "The learning rate {} is far {} the usual rate of {} with {}, about {}. Use 'Find learning "
    "rate' below to test it.",
    "Unparsable lines were dropped: {}.", "Not saved yet: {}. Training uses the saved list.",
    "{} shortest clip is {} s.", "{} longest clip is {} s.",
    # For machines, or said before there is a page to translate.
    "{} % ({} to {}),", "ArrowLeft", "ArrowRight", "AudioError", "AudioFacts", "Bearer",
    "Cache-Control", "Connection", "Content-Disposition", "Content-Security-Policy",
    "Cross-Origin-Opener-Policy", "Cross-Origin-Resource-Policy", "Ctrl + Enter", "TextEdits",
    "Enter",
    "Esc", "Escape", "IBM Plex Mono", "IBM Plex Sans", "Manifest", "Noto Naskh Arabic",
    "Noto Sans Ethiopic", "Noto Sans KR", "Referrer-Policy", "Source", "Speech was interrupted: %s",
    "Timbre runs at {} - runs are stored in {}", "card court-card", "charts two", "chip chip-{}",
    "court live", "in the runs folder.", "live trial", "notice error",
    "notice undo", "notice warning", "quiet key", "small primary",
    "runs-table differences", "runs-table race-table", "small rescue", "tab-title sr-only",
    "{} The program printed it at startup.",
}  # fmt: skip
NAMES = {
    "AdEMAMix", "Adafactor", "AdamW 8-bit", "AdamW", "CSV", "English", "FastSpeech 2",
    "IndexTTS-2", "JSON", "Kron (PSGD)", "Lion", "LoRA", "MARS-AdamW", "MARS-Lion", "MARS-Shampoo",
    "Muon", "Noam", "PNG", "Prodigy + Schedule-Free", "Prodigy", "SOAP + AdEMAMix", "SVG",
    "Schedule-Free AdamW", "TF32", "Timbre", "XTTS v2",
}  # fmt: skip
"""What is called the same in every language."""
_NUMBER = r"(\{\}|[-+]?\d[\d.,:]*(?:e-?\d+)?|-)"
_SENTENCES = re.compile(r"(?<=[.!?]) (?=[A-Z'{0-9])")
_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/|(?P<before>[\w)\]]\s*\+\s*)?(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote)).)*)"""
    r"""(?P=quote)(?P<after>\s*\+\s*[\w(])?|`(?P<template>(?:\\.|\$\{(?:[^{}`]|`[^`]*`|\{[^{}]*\})*\}|[^`])*)`""",
    re.S,
)
_NO_WORDS = re.compile(
    r"[^A-Za-z]*|[A-Za-z]|[a-z0-9_./:#?&=\[\]{}*-]+|[A-Z_0-9]+|[\w-]+/[\w./+*-]+"
)
_CODE = re.compile(
    r"[;<>]|=>|\{[a-z]|--|\bvar\(|querySelector|^[#.\[:]|^\w+=|\\|px\b|__|%\{|^[a-z-]+: "
)


def plain(sentence: str) -> str:
    """Return a sentence with every value as `{}` and without the marks of bold words."""
    return re.sub(r"\{[^}]*\}", "{}", sentence.replace("**", "")).strip()


def all_said(folder: Path) -> dict[str, str]:
    """Return every sentence of the page, and where it was found."""
    found: dict[str, str] = {}
    for where, sentences in {
        "components": component_words(folder),
        "options": option_words(),
        "metrics": metric_words(),
        "scripts": script_words(),
        "python": python_words(),
    }.items():
        for sentence in sentences:
            found.setdefault(plain(sentence), where)
    return {
        sentence: where
        for sentence, where in found.items()
        if sentence and is_word(sentence) and sentence not in NOT_SAID
    }


def is_word(sentence: str) -> bool:
    """Tell whether something can be translated: it is no number, value, path or name."""
    return sentence not in NAMES and not _NO_WORDS.fullmatch(sentence)


def component_words(folder: Path) -> Iterator[str]:
    """Yield what Gradio's components show before anything is pressed."""

    async def build() -> Any:
        return build_page(make_studio(folder))

    values_of = {
        choice
        for options in _option_classes()
        for info in describe(options)
        for choice in info.choices
    }
    # A loop of its own: Gradio makes one that nobody closes for a page built outside of one.
    for block in asyncio.run(build()).blocks.values():
        values, kind = block.get_config(), type(block).__name__
        yield from (values.get(name) or "" for name in ("label", "info", "placeholder"))
        yield from (label for label, _ in values.get("choices") or [] if label not in values_of)
        yield from values.get("headers") or []
        shown = values.get("value")
        if kind in ("Button", "UploadButton", "DownloadButton"):
            yield shown or ""
        elif kind == "Markdown":
            yield from _lines(shown or "")
        elif kind == "HTML":
            yield from html_words(shown or "")


def _lines(markdown: str) -> Iterator[str]:
    for line in markdown.splitlines():
        yield re.sub(r"^[#\s-]+|[*`]", "", line)


def html_words(text: str) -> Iterator[str]:
    """Yield the texts and spoken labels of a piece of HTML."""
    yield from re.findall(r'(?:aria-label|title|placeholder)="([^"]*)"', text)
    text = re.sub(r'<(\w+)[^>]*translate="no"[^>]*>.*?</\1>', "", text)
    text = re.sub(r"</?(?:b|bdi|em|i|small|strong)\b[^>]*>", "", text)
    yield from (unescape(part).rstrip(": ") for part in re.split(r"<[^>]*>", text))


def option_words() -> Iterator[str]:
    """Yield the labels and helps of every option, also of what this machine lacks.

    Choices of options are the values of the command line and of run.json: they stay as they are.
    """
    for entry in _entries():
        yield entry.label
        yield entry.help if isinstance(entry, Optimization) else describe_entry(entry)
    for options in _option_classes():
        for info in describe(options):
            if not info.retired and info.name not in NOT_SHOWN:
                yield info.label
                yield info.help
    for preset in PRESETS.values():
        yield f"{preset.label}: {preset.summary}"


def metric_words() -> Iterator[str]:
    """Yield the labels, units and titles of metrics that the scripts show: charts/metrics.js."""
    for metric in METRICS.values():
        if metric.tile or metric.chart or metric.compared:
            yield metric.label
        if metric.tile:
            yield metric.unit
        if metric.compared:
            yield metric.title
    for chart in {metric.chart for metric in METRICS.values()} - {"", "breakdown"}:
        drawn = [METRICS[name] for name in metrics_of(chart)]
        unit = f" ({drawn[0].unit})" if drawn[0].unit else ""
        yield drawn[0].title if len(drawn) == 1 else f"{chart.capitalize()}{unit}"


def _entries() -> list[Any]:
    kinds = (ModelFamily, OptimizerSpec, Optimization)
    found: list[Any] = [*SCHEDULES.values()]
    for kind, package in zip(kinds, ("models", "optimizers", "optimizations"), strict=True):
        found += discover(f"trainer.{package}", kind).values()
    return found


def _option_classes() -> list[type]:
    return [DataConfig, TrainingConfig, RaceChoices, *(entry.options for entry in _entries())]


def script_words() -> Iterator[str]:
    """Yield the sentences of our scripts; a literal joined to a value ends or starts with `{}`."""
    for path in sorted((PROJECT / "webui" / "static" / "js").rglob("*.js")):
        text = path.read_text(encoding="utf-8").replace('"use strict";', "")
        text = re.sub(r'"\s*\+\s*"', "", text)
        text = re.sub(r'`\s*\+\s*"((?:[^"\\]|\\.)*)"', r"\1`", text)
        yield from _literals(text)


def _literals(script: str) -> Iterator[str]:
    for found in _TOKENS.finditer(script):
        words = found["text"] or ""
        if found["template"] is not None:
            holes = re.compile(r"\$\{((?:[^{}`]|`[^`]*`|\{[^{}]*\})*)\}")
            words = holes.sub("{}", found["template"])
            for hole in holes.findall(found["template"]):
                yield from _literals(hole)
        if _is_said(words):
            start, end = ("{}" if found[part] else "" for part in ("before", "after"))
            yield start + words + end


def python_words() -> Iterator[str]:
    """Yield the sentences that the page's Python says, and those that alerts tell."""
    paths = [path for pattern in SAID_BY_PYTHON for path in sorted(PROJECT.glob(pattern))]
    for path in paths:
        if path.name in SAID_IN_TERMINALS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        skipped = set(_silent(tree))
        for node in ast.walk(tree):
            if id(node) in skipped:
                continue
            for words in html_words(_text_of(node)):
                if _is_said(words):
                    yield re.sub(r"^[#\s-]+|[*`]", "", words)


def _text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    return ""


def _silent(tree: ast.AST) -> Iterator[int]:
    """Yield the nodes that nobody reads: docstrings, parts of f-strings, arguments for machines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield id(node.value)
        elif isinstance(node, ast.JoinedStr):
            yield from (id(part) for part in ast.walk(node) if part is not node)
        elif isinstance(node, ast.keyword) and (node.arg or "").startswith(("elem_", "js", "api_")):
            yield from map(id, ast.walk(node.value))


def _is_said(words: str) -> bool:
    core = words.strip()
    has_words = re.search(r"[A-Za-z]{2,}", re.sub(r"\{\}", "", core))
    if not has_words or _CODE.search(core):
        return False
    return bool(re.search(r"[A-Za-z]{2,} |^[A-Z][a-z]+", core))


class Dictionary:
    """The dictionary of a language, asked as the page asks it."""

    def __init__(self, language: str) -> None:
        path = WORDS / f"{language}.json"
        self.words: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
        self._patterns = [_pattern(key) for key in self.words if "{" in key]
        self._plain = {plain(key) for key in self.words}

    def knows(self, sentence: str) -> bool:
        """Tell whether a sentence is translated: as a whole, as a pattern, or part by part."""
        if sentence in self._plain or not is_word(sentence):
            return True
        for expression, names in self._patterns:
            found = expression.fullmatch(sentence)
            if found:
                pairs = zip(names, found.groups(), strict=True)
                return all(self.knows(part) for name, part in pairs if name.startswith("+"))
        parts = _SENTENCES.split(sentence)
        return len(parts) > 1 and all(self.knows(part) for part in parts)


def _pattern(key: str) -> tuple[re.Pattern[str], list[str]]:
    parts = re.split(r"\{([^}]*)\}", key)
    names = parts[1::2]
    source = "".join(
        re.escape(part) if index % 2 == 0 else _NUMBER if re.fullmatch(r"n\d*", part) else "(.+?)"
        for index, part in enumerate(parts)
    )
    return re.compile(source, re.S), names

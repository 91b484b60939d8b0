"""Foreign words on the page: markup in texts, names and messages is shown, never taken as such."""

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

from tests.helpers.browser import needs_chromium, open_page, watch_run
from tests.helpers.clips import write_list, write_tone
from tests.helpers.page_server import PROJECT, PageServer
from trainer import Run, RunConfig
from trainer.core.events import (
    CheckpointSaved,
    Notice,
    PreviewMade,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)
from trainer.core.run_config import Choice, DataConfig, TrainingConfig

EVIL = "<img src=canary onerror=window.__x=1>"
"""Markup that runs a script, or at least leaves an element, wherever it is taken as markup."""

_SOURCES = sorted((PROJECT / "webui").rglob("*.py"))
_TAG = re.compile(r"<[a-z/]")
_ESCAPES = {"escape_html", "escape", "len", "_gib", "duration_text", "''.join"}
_NUMBERS = re.compile(r"'(line|clips|clips_with_unknown|count|num_\w+|\w+_s|minutes)'\]$")
_WORDS = {"text", "reason", "remedy", "speaker", "error", "note", "cell", "message"}


def _is_harmless(value: ast.FormattedValue) -> bool:
    """Whether a part of an HTML f-string is escaped, a number, or markup of our own."""
    part = value.value
    if value.format_spec is not None:
        return True
    if isinstance(part, ast.Call):
        return ast.unparse(part.func) in _ESCAPES or ast.unparse(part).startswith("role_of.get(")
    if isinstance(part, ast.Name):
        return part.id not in _WORDS
    if isinstance(part, ast.Subscript):
        return _NUMBERS.search(ast.unparse(part)) is not None
    return not isinstance(part, ast.Attribute)


def _unescaped(tree: ast.AST) -> Iterator[str]:
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr):
            continue
        words = "".join(str(part.value) for part in text.values if isinstance(part, ast.Constant))
        parts = [part for part in text.values if isinstance(part, ast.FormattedValue)]
        if _TAG.search(words):
            yield from (ast.unparse(part.value) for part in parts if not _is_harmless(part))


@pytest.mark.fault("F7")
@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: path.name)
def test_what_is_put_into_markup_is_escaped(path: Path) -> None:
    assert list(_unescaped(ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize("code", ["f'<b>{text}</b>'", "f'<b>{run.name}</b>'", "f'<b>{x[0]}</b>'"])
def test_the_rule_finds_what_is_not_escaped(code: str) -> None:
    assert len(list(_unescaped(ast.parse(code)))) == 1


@pytest.mark.fault("F7")
def test_no_component_and_no_script_takes_words_as_markup() -> None:
    scripts = sorted((PROJECT / "webui" / "static" / "js").rglob("*.js"))
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
    dangerous = r"sanitize_html=False|datatype=\"(html|markdown)|[\"']html[\"']\s*[,\]]|unsafe_"

    found = [p.name for p in scripts if re.search(forbidden, p.read_text(encoding="utf-8"))]
    found += [p.name for p in _SOURCES if re.search(dangerous, p.read_text(encoding="utf-8"))]

    # Comments may speak of it.
    assert [name for name in found if name != "dom.js"] == []
    lines = (
        (PROJECT / "webui" / "static" / "js" / "base" / "dom.js")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    assert [line for line in lines[1:] if re.search(forbidden, line)] == []


@pytest.fixture
def evil_run(server: PageServer) -> Iterator[Run]:
    """A run of a stranger: every word in it is markup."""
    config = RunConfig(
        data=DataConfig(train_csv=f"/{EVIL}.csv", language="en"),
        optimizer=Choice("adamw"),
        training=TrainingConfig(steps=9, preview_text=EVIL),
    )
    run = Run.create(server.runs / f"evil {EVIL}", config)
    facts = {"device": EVIL, EVIL: EVIL, "speakers": [EVIL], "voices": [EVIL]}
    run.events.append(RunStarted(1, 9, 3, facts, {EVIL: {"on": True, "detail": EVIL}}))
    metrics = {"train/loss": 1.0, f"train/{EVIL}": 1.0, f"perf/{EVIL}": 1.0, "train/lr": 1e-3}
    for step in range(1, 9):
        run.events.append(StepDone(step, metrics))
    run.events.append(ValidationDone(8, {"val/loss": 1.0, f"val/{EVIL}": 1.0}))
    run.events.append(PreviewMade(8, f"previews/{EVIL}.wav", EVIL, EVIL))
    run.events.append(CheckpointSaved(8, f"checkpoints/{EVIL}", True, 1, 0.1))
    run.events.append(Notice("warning", EVIL, EVIL, 8, EVIL))
    run.events.append(RunFinished("failed", 8, EVIL, EVIL))
    write_tone(run.folder / "previews" / f"step-00000008{EVIL}.wav")
    (run.folder / "log.txt").write_text(f"{EVIL}\n</pre></script>{EVIL}\n")
    (run.folder / "checkpoints" / "step-00000008").mkdir()
    (run.folder / "checkpoints" / "step-00000008" / "manifest.json").write_text(json.dumps(EVIL))
    yield run
    shutil.rmtree(run.folder)


def _is_clean(page: Page) -> bool:
    taken = "document.querySelectorAll('[src$=canary], [onerror]').length"
    return page.evaluate(f"window.__x === undefined && {taken} === 0")


@needs_chromium
@pytest.mark.fault("F7")
def test_markup_in_foreign_words_stays_words_on_every_tab(
    context: BrowserContext, server: PageServer, evil_run: Run, tmp_path: Path
) -> None:
    clips = [write_tone(tmp_path / f"clip-{number}.wav") for number in range(3)]
    rows = [f"clip-{number}.wav|{EVIL} says {number}|{EVIL}|{EVIL}" for number in range(3)]
    head = f"audio_file|text|speaker_name|{EVIL}"
    listed = write_list(tmp_path / "train.csv", head, *rows, f"{EVIL}.wav|x|y|z")
    page = open_page(context, server)

    page.click("#tab-data-button")
    page.set_input_files("#upload input[type=file]", [str(listed), *map(str, clips)])
    page.wait_for_selector("#ledger >> text=says 1")
    assert EVIL in page.inner_text("#data-report")
    assert _is_clean(page)

    page.fill("#upload ~ * textarea, #audio-folder input, #audio-folder textarea", f"/{EVIL}")
    page.set_input_files("#upload input[type=file]", [str(listed)])
    page.wait_for_selector("text=is not a folder")
    assert _is_clean(page)

    live = watch_run(context, server, evil_run)
    live.wait_for_function("document.querySelector('#live').innerText.includes('onerror')")
    assert _is_clean(live)
    for tab in ("listen", "race", "train", "start", "runs"):
        live.click(f"#tab-{tab}-button")
        live.wait_for_selector(f"#tab-{tab}")
        assert _is_clean(live), tab
    live.wait_for_selector(f"#runs >> text={EVIL}")
    assert _is_clean(live)


@needs_chromium
@pytest.mark.fault("F7")
def test_files_whose_names_are_markup_are_uploaded_and_stay_files(
    context: BrowserContext, server: PageServer, tmp_path: Path
) -> None:
    clip = write_tone(tmp_path / f"{EVIL}.wav")
    listed = write_list(tmp_path / f"{EVIL}.csv", f"{clip.name}|It says so")
    page = open_page(context, server, "?tab=data")

    page.set_input_files("#upload input[type=file]", [str(listed), str(clip)])
    page.wait_for_selector("#data-report .fact")
    page.wait_for_selector("#upload >> text=onerror")
    report = page.inner_text("#data-report")

    assert "onerror" in report
    assert _is_clean(page)

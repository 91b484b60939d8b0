"""What the browser tests share: Chromium, one page server, and runs with made-up training."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.helpers.page_server import PageServer, start_page
from trainer import Run, RunConfig
from trainer.core.run_config import TrainingConfig

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None and os.environ.get("CI") != "true",
    reason="Chromium is not installed; the page tests need it",
)
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
    "--autoplay-policy=no-user-gesture-required", "--enable-precise-memory-info",
]  # fmt: skip
Starter = Callable[..., Run]
PATIENCE_MS = 180_000
"""How long a page may take: a busy machine is no error, and only a failing test waits as long."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    """One page for all browser tests; every test names its runs by names of its own."""
    server = start_page(tmp_path_factory.mktemp("browser") / "runs")
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium; not for the whole session, because asyncio is not free while it runs."""
    assert CHROMIUM, "Chromium is not installed, and CI runs the page tests"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A fresh profile; an error on any of its pages, or a request elsewhere, fails the test."""
    context = new_context(
        browser, viewport={"width": 1280, "height": 900}, locale="en-US", timezone_id="UTC",
        reduced_motion="reduce",
    )  # fmt: skip
    wrong: list[str] = []
    context.on("weberror", lambda error: wrong.append(str(error.error)))
    context.on("console", lambda message: _note(message, wrong))
    context.on("request", lambda request: _note_foreign(request.url, wrong))
    yield context
    context.close()
    assert not wrong, wrong


def new_context(browser: Browser, **wishes: Any) -> BrowserContext:
    """Return a fresh profile whose waits are as patient as those of `context`."""
    context = browser.new_context(**wishes)
    context.set_default_timeout(PATIENCE_MS)
    return context


def _note(message: Any, wrong: list[str]) -> None:
    # A server that was killed on purpose breaks and refuses connections; each one is logged.
    is_cut = any(
        words in message.text for words in ("ERR_CONNECTION", "ERR_EMPTY", "ERR_INCOMPLETE")
    )
    if message.type == "error" and not is_cut:
        wrong.append(message.text)


def _note_foreign(url: str, wrong: list[str]) -> None:
    if not url.startswith(("http://127.0.0.1", "data:", "blob:")):
        wrong.append(url)


def open_page(context: BrowserContext, server: PageServer, query: str = "") -> Page:
    """Open the page and wait until its script has heard from the server."""
    page = context.new_page()
    page.goto(server.url + query)
    page.wait_for_function("window.timbre && timbre.answeredAt > 0")
    page.wait_for_selector("#tab-start-button")
    # A busy machine may take longer for the second press than a person.
    page.evaluate("timbre.confirmMs = 1e8")
    return page


@pytest.fixture
def start(server: PageServer) -> Iterator[Starter]:
    """Start made-up training; what still trains at the end of the test is stopped."""
    processes = []

    def start_run(name: str, steps: int, end: str = "") -> Run:
        training = TrainingConfig(steps=steps, preview_text=end)
        run = Run.create(server.runs / name, RunConfig(training=training))
        command = [
            sys.executable,
            str(Path(__file__).parent.parent / "helpers" / "fake_trainer.py"),
            str(run.folder),
        ]
        with (run.folder / "log.txt").open("ab") as log:
            processes.append(subprocess.Popen(command, stdout=log, stderr=log))
        return run

    yield start_run
    for process in processes:
        process.kill()
        process.wait()


def watch_run(context: BrowserContext, server: PageServer, run: Run) -> Page:
    """Open the page on the live tab of a run."""
    page = open_page(context, server, f"?tab=live&run={run.name}")
    page.wait_for_function(f"timbre.run === '{run.name}' && timbre.updates > 0")
    return page


def stop_run(run: Run) -> None:
    """Stop a run that trains and wait for its end."""
    if run.status().is_active:
        run.request("stop")
        run.wait(poll_s=0.02)

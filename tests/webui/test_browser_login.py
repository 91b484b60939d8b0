"""Who may come in: the password and the token, as a person meets them in a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.helpers.browser import needs_chromium, new_context
from tests.helpers.page_server import PageServer, start_page
from trainer import Run, RunConfig
from trainer.core.events import RunStarted, StepDone
from trainer.core.run_config import TrainingConfig

pytestmark = needs_chromium
HEARD = "window.timbre && timbre.answeredAt > 0"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., PageServer]]:
    """Start a page with a run in it; it is ended with the test."""
    servers: list[PageServer] = []

    def start(*words: str, token: bool = False) -> PageServer:
        run = Run.create(tmp_path / "runs" / "inside", RunConfig(training=TrainingConfig(steps=9)))
        run.events.append(RunStarted(1, 9, 3))
        run.events.append(StepDone(1, {"train/loss": 1.0}))
        servers.append(start_page(tmp_path / "runs", *words, token=token))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def _open(browser: Browser, url: str, **about: Any) -> Page:
    page = new_context(browser, **about).new_page()
    page.goto(url)
    return page


def _log_in(page: Page, password: str) -> None:
    page.fill("[name=username]", "ada")
    page.fill("[name=password]", password)
    page.press("[name=password]", "Enter")


def test_a_password_opens_the_page_a_wrong_one_says_so_and_so_does_a_tab_logged_out(
    browser: Browser, serve: Callable[..., PageServer]
) -> None:
    server = serve("--auth", "ada:secret")
    page = _open(browser, server.url + "?tab=live&run=inside")

    _log_in(page, "guess")
    page.wait_for_selector("#login-refused >> text=Wrong name or password.")
    is_closed = page.evaluate("fetch('studio/runs').then((answer) => answer.status)")
    _log_in(page, "secret")
    page.wait_for_function("window.timbre && timbre.updates > 2 && timbre.run === 'inside'")
    page.evaluate("timbre.openTab('runs')")
    page.wait_for_selector("#runs tr[data-run=inside]")
    page.context.clear_cookies()
    page.wait_for_selector("#strip >> text=You are logged out")
    said = page.evaluate("timbre.answeredAt")
    page.click("#log-in")
    page.wait_for_selector("#login-form")
    korean = _open(browser, server.url, locale="ko-KR")
    korean.wait_for_selector("#login-form >> text=로그인")
    for shown in (page, korean):
        shown.context.close()

    assert is_closed == 401
    assert said > 0


def test_the_printed_address_opens_the_page_once_for_all_and_no_other_does(
    browser: Browser, serve: Callable[..., PageServer]
) -> None:
    server = serve(token=True)
    bare = server.url.split("?")[0]
    page = _open(browser, bare)

    asked = page.inner_text("body")
    page.fill("[name=token]", "x" * 43)
    page.click("button")
    page.wait_for_selector("text=This token is wrong.")
    page.goto(server.url)
    page.wait_for_function(HEARD)
    address = page.url
    page.goto(bare + "?tab=live&run=inside")
    page.wait_for_function("window.timbre && timbre.updates > 0 && timbre.run === 'inside'")
    stranger = _open(browser, bare + "?run=inside")
    refused = stranger.inner_text("body")
    for shown in (page, stranger):
        shown.context.close()

    assert "requires a token" in asked
    assert "token" not in address
    assert "requires a token" in refused

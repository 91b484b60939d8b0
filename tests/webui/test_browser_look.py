"""How the page looks, reads and is worked in a browser: every tab, every language, no mouse."""

import contextlib
import io
import os
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.helpers.browser import (
    Starter,
    needs_chromium,
    new_context,
    open_page,
    stop_run,
    watch_run,
)
from tests.helpers.clips import write_list, write_tone
from tests.helpers.page_server import PageServer
from tests.helpers.words import is_word
from trainer import Run, RunConfig
from trainer.callbacks.alerts import Alerts
from trainer.core.events import (
    CheckpointSaved,
    Notice,
    PreviewMade,
    Publisher,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)

pytestmark = needs_chromium
PHONE, DESK = {"width": 375, "height": 740}, {"width": 1280, "height": 900}
WORDS = "Loss"
"""A name that the page says itself: as somebody's name it must never be translated."""
VIOLATIONS = """async () => {
    const moves = (one) => one.playState === 'running' && one.effect.getTiming().iterations === 1;
    const isFilled = () => !document.querySelector(
            '.pending, .generating, div.empty[aria-label]:not([role])')
        && ![...document.querySelectorAll('p.loading')].some((words) => words.checkVisibility());
    const isCalm = () => isFilled() && !document.getAnimations().some(moves);
    for (let frame = 0; frame < 2000 && !isCalm(); frame++)
        await new Promise(requestAnimationFrame);
    return (await axe.run(document, {resultTypes: ['violations']})).violations
        .flatMap((rule) => rule.nodes.map((node) => rule.id + ': ' + node.html));
}"""
"""What waits for its handler is drawn faintly until then, and colours fade into one another. Gradio
says "Loading..." until it has built the page, and our script gives its empty players their role."""
BOXES = """(names) => names.map((name) =>
    document.querySelector(name).getBoundingClientRect().toJSON())"""
"""Where elements lie at one and the same moment."""
DIRECTION = "getComputedStyle(document.querySelector('#live .chart canvas')).direction"
TILES = """Object.fromEntries([...document.querySelectorAll('#live .tile:not([hidden])')]
    .map((tile) => [...tile.children].map((part) => part.textContent))
    .map(([name, value, unit]) => [name, [value, unit]]))"""
DRAWN = """Object.fromEntries([...document.querySelectorAll('#live .tile')].map((tile) => {
    const canvas = tile.querySelector('canvas'), ink = canvas.width && canvas.getContext('2d')
        .getImageData(0, 0, canvas.width, canvas.height).data.some((part) => part);
    return [tile.firstChild.textContent, Boolean(ink)];
}))"""
LOG_SCALE = "#live .toolbar input[type=checkbox]"
TYPED_AFTER_CLOSING = """() => {
    document.querySelector('#keys').close();
    const focused = document.activeElement;
    focused.dispatchEvent(new KeyboardEvent('keydown', {key: 'l', bubbles: true}));
    return focused.tagName;
}"""
UNSAID = "[...timbre.untranslated]"
OPEN_TABS = """[...document.querySelectorAll('[role=tab][aria-selected=true]')]
    .map((tab) => tab.dataset.tabId)"""
AFTER_FRAMES = """async () => { for (let frame = 0; frame < 70; frame++)
    await new Promise(requestAnimationFrame); }"""


@pytest.fixture(scope="module")
def rich(server: PageServer) -> Run:
    """A finished run that shows one of everything, with words of the page where people write."""
    return _finished(server, WORDS)


def _finished(server: PageServer, name: str) -> Run:
    run = Run.create(server.runs / name, RunConfig())
    states = {"sdpa": {"on": True, "detail": "", "asked": True}}
    run.events.append(RunStarted(1, 20, 10, {"device": "a fake", "parameters": 1234}, states))
    for step in range(1, 21):
        run.events.append(StepDone(step, {"train/loss": 1 / step, "perf/s_per_step": 0.1}))
    run.events.append(ValidationDone(20, {"val/loss": 0.2}))
    run.events.append(
        Notice(
            "warning",
            "The loss is NaN or infinite.",
            "Listen to these clips if it happens again.",
            15,
        )
    )
    run.events.append(CheckpointSaved(20, "checkpoints/step-00000020", True, 10, 0.1))
    run.events.append(PreviewMade(20, "previews/step-00000020.wav", WORDS, "ada"))
    run.events.append(RunFinished("finished", 20))
    return run


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A list of two clips whose text is a word of the page."""
    folder = tmp_path_factory.mktemp("listed")
    rows = [f"{write_tone(folder / name).name}|{WORDS}" for name in ("a.wav", "b.wav")]
    return write_list(folder / "train.csv", *rows)


def _tour(page: Page, listed: Path) -> Iterator[str]:
    """Open every tab in turn, filled with what it can show, and yield its name."""
    tabs = page.evaluate("[...document.querySelectorAll('[role=tab]')].map((e) => e.dataset.tabId)")
    for tab in tabs:
        page.evaluate(f"timbre.openTab('{tab}')")
        page.wait_for_selector(f"#tab-{tab}", state="visible")
        if tab == "data":
            page.fill("#data-train_csv :is(input, textarea)", str(listed))
            page.click("#check-data")
            page.wait_for_selector(f"#ledger [data-col='2'] >> text={WORDS}")
        elif tab == "live":
            page.evaluate(f"timbre.show('{WORDS}')")
            page.wait_for_function("timbre.state === 'finished'")
            page.evaluate(
                "document.querySelectorAll('#live details').forEach((e) => e.open = true)"
            )
        elif tab == "runs":
            page.click(f"tr[data-run={WORDS}] summary")
        yield tab


def _keep(page: Page, name: str) -> None:
    """Keep a picture to look at, where somebody asked for pictures."""
    folder = os.environ.get("TIMBRE_SCREENSHOTS")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def test_every_tab_can_be_read_and_pressed_by_all_in_both_colours_and_on_a_phone(
    context: BrowserContext, server: PageServer, rich: Run, listed: Path
) -> None:
    axe = files("axe_playwright_python") / "axe.min.js"
    context.add_init_script(axe.read_text(encoding="utf-8"))
    page = open_page(context, server)
    found: dict[str, Any] = {}

    for tab in _tour(page, listed):
        for scheme in ("light", "dark"):
            found[f"{tab} {scheme}"] = page.evaluate(VIOLATIONS)
            _keep(page, f"{tab}-{scheme}")
            page.evaluate("timbre.switchTheme()")
        page.set_viewport_size(PHONE)  # type: ignore[arg-type]
        found[f"{tab} wide"] = page.evaluate(
            "Array(document.documentElement.scrollWidth - innerWidth).fill('too wide')"
        )
        _keep(page, f"{tab}-phone")
        page.set_viewport_size(DESK)  # type: ignore[arg-type]

    assert {place: wrong for place, wrong in found.items() if wrong} == {}
    assert len(found) >= 18


def test_the_tab_pressed_last_stays_open_however_late_the_page_answers(
    context: BrowserContext, server: PageServer
) -> None:
    page = context.new_page()
    late: list[Route] = []
    page.route("**/gradio_api/queue/**", lambda route: late.append(route))
    page.goto(server.url + "?tab=data")
    page.wait_for_function("window.timbre && timbre.answeredAt > 0")
    page.wait_for_selector("#tab-data", state="visible")

    page.evaluate("timbre.openTab('runs'); timbre.openTab('race'); timbre.openTab('train');")
    page.wait_for_selector("#tab-train", state="visible")
    page.evaluate(AFTER_FRAMES)
    for route in late:
        route.continue_()
    page.unroute("**/gradio_api/queue/**")
    page.wait_for_timeout(500)

    assert page.evaluate(OPEN_TABS) == ["train"]
    page.click("#tab-listen-button")
    page.evaluate("timbre.openLinkedTab()")
    page.evaluate(AFTER_FRAMES)
    assert page.evaluate(OPEN_TABS) == ["listen"]


def test_start_and_stop_are_as_wide_as_a_phone_and_stand_apart(
    browser: Browser, server: PageServer, start: Starter
) -> None:
    run = start("thumb", 100_000)
    context = new_context(browser, viewport=PHONE)
    page = watch_run(context, server, run)

    page.wait_for_selector("#live-stop", state="visible")
    stop, discard = page.evaluate(BOXES, ["#live-stop", "#live-discard"])
    stop_run(run)
    page.evaluate("timbre.openTab('train')")
    page.wait_for_selector("#start-training", state="visible")
    begin, queue = page.evaluate(BOXES, ["#start-training", "#add-to-queue"])
    context.close()

    assert min(stop["width"], begin["width"]) > 0.8 * PHONE["width"]
    assert abs(discard["y"] - stop["y"]) >= stop["height"] + 8
    assert queue["y"] >= begin["y"] + begin["height"] + 8


def test_the_page_speaks_the_language_of_the_browser_and_leaves_what_people_wrote(
    browser: Browser, server: PageServer, rich: Run, listed: Path
) -> None:
    context = new_context(browser, locale="fa-IR", viewport=DESK)
    page = open_page(context, server)
    page.wait_for_function("timbre.language === 'fa'")

    wide, written, unsaid = {}, {}, {}
    for tab in _tour(page, listed):
        wide[tab] = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        _keep(page, f"{tab}-fa")
        if tab == "data":
            written["text"] = page.locator(
                "#ledger [data-col='2'] >> visible=true"
            ).last.inner_text()
        elif tab == "live":
            page.wait_for_selector(".tile strong >> text=۰٫۰۵")
            written["picker"] = page.inner_text("#live-run option:checked")
            written["preview"] = page.inner_text("#live-previews .preview span")
            written["chart"] = page.evaluate(DIRECTION)
        elif tab == "runs":
            written["table"] = page.inner_text(f"tr[data-run={WORDS}] b")
    root = page.evaluate("[document.documentElement.lang, document.documentElement.dir]")
    titles = page.inner_text("#tab-train-button"), page.inner_text("#tab-runs-button")
    for language in ("fa", "am", "ko"):  # Every tab was opened, so each is said once more.
        page.select_option("#language", language)
        page.wait_for_function(f"document.documentElement.lang === '{language}'")
        unsaid[language] = [words for words in page.evaluate(UNSAID) if is_word(words)]
    page.reload()
    page.wait_for_selector("#tab-train-button >> text=학습")
    page.select_option("#language", "en")
    page.wait_for_selector("#tab-train-button >> text=Train")
    context.close()

    assert unsaid == {"fa": [], "am": [], "ko": []}
    assert set(wide.values()) == {0}
    assert written == {
        "picker": WORDS,
        "preview": WORDS,
        "chart": "ltr",
        "table": WORDS,
        "text": WORDS,
    }
    assert root == ["fa", "rtl"]
    assert not {"Train", "Runs"} & set(titles)


def test_a_choice_is_shown_and_found_in_the_language_of_the_page(
    browser: Browser, server: PageServer
) -> None:
    context = new_context(browser, locale="fa-IR")
    page = open_page(context, server, "?tab=train")
    shown = "document.querySelector('#schedule-choice select')?.selectedOptions[0].textContent"

    page.wait_for_function(f"{shown} === 'کسینوسی'")
    page.select_option("#schedule-choice select", label="خطی")
    page.wait_for_selector("#schedule-linear-warmup_steps", state="visible")
    page.wait_for_function(f"{shown} === 'خطی'")
    context.close()


def test_a_checked_option_is_seen_to_be_checked(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_page(context, server, "?tab=train")
    box = page.locator("#optimization-lora input")
    shares = {}
    for scheme in ("light", "dark"):
        for is_checked in (False, True):
            box.set_checked(is_checked)
            page.locator("#run-name input, #run-name textarea").focus()
            page.mouse.move(0, 0)
            picture = matplotlib.image.imread(io.BytesIO(box.screenshot()))[:, :, :3]
            is_blue = picture[:, :, 2] > picture[:, :, 0] + 0.2
            shares[scheme, is_checked] = is_blue.mean()
        page.evaluate("timbre.switchTheme()")

    # The tick itself is not blue, nor is the edge of a box that is empty.
    assert all((share > 0.4) == is_checked for (_, is_checked), share in shares.items()), shares


def test_the_tiles_of_a_run_on_a_gpu_tell_its_memory_work_and_warmth(
    context: BrowserContext, server: PageServer
) -> None:
    run = Run.create(server.runs / "gpu", RunConfig())
    facts = {"device": "NVIDIA A10G", "device_kind": "cuda", "memory_total_gib": 22.2}
    run.events.append(RunStarted(1, 400, 100, facts))
    tell = Publisher(run.events.append, Alerts(run.folder, total_gib=22.2))
    for step in range(1, 121):
        tell(StepDone(step, _gpu_metrics(step)))
    lock = run.take()
    page = open_page(context, server, "?tab=live&run=gpu")

    page.wait_for_selector("#live .tile >> text=GPU memory")
    tiles = page.evaluate(TILES)
    drawn = page.evaluate(DRAWN)
    legend = page.inner_text("#live figure:has-text('Memory') .legend")
    warning = page.inner_text("#live .notice.warning >> text=Peak GPU memory")
    _keep(page, "live-gpu")
    lock.release()

    assert tiles["GPU memory"] == ["18.4", "of 22.2 GiB, reserved 20.9, peak 21.6"]
    assert tiles["GPU utilization"] == ["97", "%, 71 \u00b0C"]
    assert tiles["Host memory"] == ["6.2", "GiB"]
    assert tiles["Effective rate"] == ["2.4e-4", "scheduled 1"]
    assert all(drawn[name] for name in ("GPU memory", "GPU utilization", "Host memory"))
    assert all(word in legend for word in ("Reserved memory", "Peak memory", "Host memory"))
    assert " of 22.2 GiB." in warning


def _gpu_metrics(step: int) -> dict[str, float]:
    """Return what a run on a GPU tells of a step; its memory grows until it is nearly full."""
    share = min(1.0, step / 100)
    return {
        "train/loss": 3 / step**0.5, "train/loss/mel_ce": 2 / step**0.5, "train/lr": 2.4e-4,
        "train/lr_scheduled": 1.0, "train/grad_norm": 1.5, "train/epoch": step / 100,
        "perf/s_per_step": 0.31 + 0.002 * (step % 5), "perf/audio_s_per_s": 120.0,
        "perf/data_wait_s": 0.004, "perf/forward_s": 0.1, "perf/backward_s": 0.17,
        "perf/optimizer_s": 0.02, "perf/memory_gib": 12 + 6.4 * share,
        "perf/memory_reserved_gib": 14 + 6.9 * share, "perf/memory_peak_gib": 15 + 6.6 * share,
        "perf/host_memory_gib": 6.2, "perf/utilisation_percent": 97.0,
        "perf/temperature_c": 50 + 21 * share,
    }  # fmt: skip


def press_until_shown(page: Page, key: str, button: str, wanted: str) -> None:
    """Press the key of a button until something appears.

    On a starved machine the run counts as stalled for a while, and then a key does nothing because
    its button is hidden.
    """
    for _ in range(20):
        page.wait_for_selector(button, state="visible")
        page.keyboard.press(key)
        with contextlib.suppress(PlaywrightTimeout):
            page.wait_for_selector(wanted, timeout=20_000)
            return
    raise AssertionError(f"{key} was pressed 20 times, and {wanted} did not appear")


def test_a_key_counts_at_once_after_a_dialog_is_closed(
    context: BrowserContext, server: PageServer, rich: Run
) -> None:
    page = watch_run(context, server, rich)
    page.wait_for_selector("#live-smoothing", state="visible")
    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")

    typed_in = page.evaluate(TYPED_AFTER_CLOSING)

    assert typed_in == "BUTTON"  # no frame has passed, so the button that closes has the focus
    assert page.is_checked(LOG_SCALE)


def test_the_page_is_worked_by_keyboard(
    context: BrowserContext, server: PageServer, start: Starter
) -> None:
    run = start("typed", 100_000)
    page = watch_run(context, server, run)
    page.wait_for_selector("#live-preview", state="visible")

    page.keyboard.press("?")
    page.wait_for_selector("#keys[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#keys", state="hidden")
    page.keyboard.press("l")
    page.keyboard.press("-")
    page.keyboard.press("-")
    page.keyboard.press("+")
    press_until_shown(page, "s", "#live-preview", "#live-previews .preview")
    page.focus("#live .chart canvas")
    page.keyboard.press("ArrowLeft")
    hover = page.inner_text(".chart.large .legend")
    smoothing = page.input_value("#live-smoothing")
    is_log = page.is_checked(LOG_SCALE)
    chart = page.locator("#live .chart.large canvas").bounding_box()
    assert chart
    page.mouse.move(chart["x"] + 200, chart["y"] + 99)
    page.mouse.down()
    page.mouse.move(chart["x"] + 400, chart["y"] + 99, steps=4)
    page.mouse.up()
    page.wait_for_selector("#live-show-all:enabled")
    page.keyboard.press("Escape")
    page.wait_for_selector("#live-show-all:disabled")
    stop_run(run)
    page.evaluate("timbre.openTab('train')")
    page.fill("#training-steps input, #training-steps textarea", "many")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#train-problem li")

    assert " at " in hover
    assert (smoothing, is_log) == ("0.85", True)

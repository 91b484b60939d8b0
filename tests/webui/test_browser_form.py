"""What was typed is what is trained, however slowly the server answers."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, Route

from tests.helpers.browser import needs_chromium, new_context, open_page
from tests.helpers.page_server import PageServer
from trainer import Run

pytestmark = needs_chromium
TYPED = {
    "run-name": "typed",
    "training-steps": "240",
    "training-batch_size": "3",
    "training-accumulate": "2",
    "optimizer-adamw-lr": "0.0017",
    "optimizer-adamw-beta1": "0.85",
    "optimizer-adamw-beta2": "0.97",
    "optimizer-adamw-eps": "1e-07",
    "optimizer-adamw-weight_decay": "0.02",
    "schedule-cosine-warmup_steps": "17",
    "schedule-cosine-final_share": "0.125",
    "training-clip_norm": "0.75",
    "training-patience": "9",
    "training-validate_every": "50 steps",
    "training-save_every": "60 steps",
    "training-preview_every": "never",
    "training-preview_text": "A short sentence.",
    "training-max_positions": "7000",
    "training-ema_decay": "0.99",
    "training-log_every": "2",
    "training-keep_last": "4",
    "training-seed": "11",
}
"""What a person enters into the Train form, field by field in the order of the page."""
SHOWN = """(names) => Object.fromEntries(names.map((name) =>
    [name, document.querySelector(`#${name} :is(input, select, textarea)`)?.value]))"""
CONTROL = "#{} :is(input, textarea)"


def make_slow(page: Page, latency_ms: int) -> None:
    """Let every request of a page take so much longer, as over a tunnel or a bad connection."""
    session = page.context.new_cdp_session(page)
    session.send(
        "Network.emulateNetworkConditions",
        {"offline": False, "latency": latency_ms, "downloadThroughput": -1, "uploadThroughput": -1},
    )


def open_form(context: BrowserContext, server: PageServer) -> Page:
    """Open the Train tab with all of its fields in sight, its plan on the Start button."""
    page = open_page(context, server, "?tab=train")
    page.wait_for_selector("#start-training >> text=Start: ")
    page.click("#optimizer-adamw-more > summary")
    page.click("#more-training > summary")
    page.click("#training-more > summary")
    for name in TYPED:
        page.wait_for_selector(CONTROL.format(name))
    return page


def fill_by_tab(page: Page, values: dict[str, str]) -> None:
    """Go from field to field with Tab, through every other control on the way."""
    wanted = dict(values)
    page.focus(CONTROL.format(next(iter(wanted))))
    for _ in range(400):
        name = page.evaluate(
            """(names) => names.find((name) =>
                document.getElementById(name).contains(document.activeElement)) || ''""",
            list(wanted),
        )
        if name:
            page.keyboard.press("Control+A")
            page.keyboard.type(wanted.pop(name))
        if not wanted:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab never came to {sorted(wanted)}")


def fill_by_mouse(page: Page, values: dict[str, str]) -> None:
    """Click into each field, the last one first, and type."""
    for name, text in reversed(values.items()):
        page.click(CONTROL.format(name), click_count=3)
        page.keyboard.type(text)


def fill_by_paste(page: Page, values: dict[str, str]) -> None:
    """Replace the content of each field at once, as pasting does."""
    for name, text in values.items():
        page.focus(CONTROL.format(name))
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(text)


WAYS: dict[str, Callable[[Page, dict[str, str]], None]] = {
    "tab": fill_by_tab,
    "mouse": fill_by_mouse,
    "paste": fill_by_paste,
}


def start_and_read(page: Page, server: PageServer, name: str) -> dict[str, Any]:
    """Press Start, wait until the page shows the run, end it, and return its run.json."""
    page.click("#start-training")
    page.wait_for_function(f"timbre.run === '{name}'")
    run = Run.open(server.runs / name)
    run.request("stop")
    return json.loads((run.folder / "run.json").read_text(encoding="utf-8"))


def as_typed(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run.json under the names of the form's fields."""
    found = {f"training-{name}": value for name, value in config["training"].items()}
    for part in ("optimizer", "schedule"):
        chosen = config[part]
        for name, value in chosen["options"].items():
            found[f"{part}-{chosen['name']}-{name}"] = value
    return found


def copy_settings(page: Page, name: str) -> None:
    """Press the button of the run table that shows a run's settings on the Train tab."""
    page.evaluate("timbre.openTab('runs')")
    page.wait_for_selector(f"tr[data-run={name}] summary")
    page.eval_on_selector(f"tr[data-run={name}] details", "(more) => { more.open = true; }")
    page.click(f"tr[data-run={name}] button >> text=Copy settings to Train")


def let_go(page: Page, held: list[Route], pattern: str = "**/queue/data*") -> None:
    """Let the answers through that were held back, and from now on all others."""
    waiting = list(held)
    page.unroute(pattern)
    for route in waiting:
        with contextlib.suppress(Error):  # newer versions let them go by themselves
            route.continue_()


def check_that_what_was_typed_is_trained(
    context: BrowserContext, server: PageServer, way: str, latency_ms: int
) -> None:
    values = TYPED | {"run-name": f"typed-{way}-{latency_ms}"}
    page = open_form(context, server)
    make_slow(page, latency_ms)

    WAYS[way](page, values)
    shown = page.evaluate(SHOWN, list(values))
    config = start_and_read(page, server, values["run-name"])

    assert shown == values
    trained = as_typed(config)
    for name, text in list(values.items())[1:]:
        assert trained[name] == type(trained[name])(text), name
    make_slow(page, 0)
    page.evaluate("timbre.openTab('train')")
    page.wait_for_selector("#start-training >> text=Start: 240 steps")
    assert page.evaluate(SHOWN, list(values)) == values


def test_what_is_chosen_before_the_scripts_have_loaded_is_in_the_form(
    context: BrowserContext, server: PageServer
) -> None:
    page = context.new_page()
    held: list[Route] = []
    page.route("**/main.js", lambda route: held.append(route))
    page.goto(server.url)
    page.click("#tab-train-button")

    page.select_option("#optimizer-choice select", "lion")
    page.select_option("#family-choice select", "xtts")
    let_go(page, held, "**/main.js")
    page.wait_for_selector("#optimizer-lion-lr", state="visible")
    (values,) = page.evaluate("timbre.withForm(['@form'])")

    chosen = {"optimizer-choice": "lion", "family-choice": "xtts", "base": ""}
    assert json.loads(values) == chosen


def test_a_press_of_speak_before_the_scripts_have_loaded_counts(
    browser: Browser, server: PageServer
) -> None:
    page = new_context(browser).new_page()
    held: list[Route] = []
    page.route("**/main.js", lambda route: held.append(route))
    page.goto(server.url)
    page.click("#tab-listen-button")

    page.click("#speak-now")
    let_go(page, held, "**/main.js")

    page.wait_for_selector("#speech .notice", state="visible")  # there is no run to speak with
    page.context.close()


@pytest.mark.parametrize(("way", "latency_ms"), [("tab", 2000), ("paste", 300)])
def test_what_was_typed_is_what_is_trained(
    context: BrowserContext, server: PageServer, way: str, latency_ms: int
) -> None:
    check_that_what_was_typed_is_trained(context, server, way, latency_ms)


@pytest.mark.slow_network
@pytest.mark.parametrize("latency_ms", [300, 2000])
@pytest.mark.parametrize("way", WAYS)
def test_what_was_typed_is_what_is_trained_in_every_way(
    context: BrowserContext, server: PageServer, way: str, latency_ms: int
) -> None:
    check_that_what_was_typed_is_trained(context, server, way, latency_ms)


def test_passing_or_opening_the_preset_list_changes_nothing(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_form(context, server)
    page.fill(CONTROL.format("training-steps"), "240")
    page.wait_for_selector("#start-training >> text=Start: 240 steps")
    before = page.evaluate(SHOWN, list(TYPED))
    make_slow(page, 2000)

    page.focus("#preset input")
    page.keyboard.press("Tab")
    page.click("#preset input")
    page.keyboard.press("Escape")
    page.click(CONTROL.format("training-accumulate"))
    page.focus("#family-choice select")
    page.keyboard.press("Tab")
    config = start_and_read(page, server, "my-voice")

    assert page.evaluate(SHOWN, list(TYPED)) == before
    assert config["training"]["steps"] == 240


def test_a_preset_is_applied_at_once_and_later_edits_stay(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_form(context, server)
    page.fill(CONTROL.format("optimizer-adamw-weight_decay"), "0.5")
    page.wait_for_function("document.querySelector('#preset input').value.startsWith('Custom')")
    page.fill(CONTROL.format("run-name"), "from-preset")
    make_slow(page, 2000)

    page.click("#preset input")
    page.click("[role=option] >> text=Fast convergence")
    page.wait_for_function(f"({SHOWN})(['training-epochs'])['training-epochs'] === '20'")
    page.fill(CONTROL.format("training-patience"), "6")
    config = start_and_read(page, server, "from-preset")

    # Set by the preset, edited after it, and left alone by it.
    assert config["training"]["epochs"] == 20
    assert config["optimizer"]["options"]["beta2"] == 0.98
    assert config["training"]["patience"] == 6
    assert config["optimizer"]["options"]["weight_decay"] == 0.5


def test_a_late_answer_leaves_what_was_edited_meanwhile(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_form(context, server)
    page.fill(CONTROL.format("run-name"), "source")
    page.fill(CONTROL.format("training-steps"), "50")
    page.fill(CONTROL.format("training-accumulate"), "5")
    start_and_read(page, server, "source")
    copy_settings(page, "source")
    page.wait_for_selector("#tab-train:visible")
    page.fill(CONTROL.format("training-steps"), "60")
    page.fill(CONTROL.format("training-accumulate"), "1")
    held: list[Route] = []
    page.route("**/queue/data*", lambda route: held.append(route))

    with page.expect_request("**/queue/join*"):
        copy_settings(page, "source")
    page.evaluate("timbre.openTab('train')")
    page.fill(CONTROL.format("training-steps"), "70")
    let_go(page, held)
    page.wait_for_function(f"({SHOWN})(['training-accumulate'])['training-accumulate'] === '5'")

    assert page.input_value(CONTROL.format("training-steps")) == "70"

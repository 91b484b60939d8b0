"""The measuring parts of the Train tab, the Race tab and the rescue, in a real browser."""

import json
from pathlib import Path

import psutil
from playwright.sync_api import BrowserContext, Page

from tests.helpers.browser import needs_chromium, open_page
from tests.helpers.page_server import PageServer
from tests.webui.test_trials import CONFIG, finished_race
from trainer import Run
from trainer.core.device import list_devices
from trainer.core.events import Notice, RunStarted, StepDone
from trainer.profiling.measurements import Measurement, Trial, keep
from trainer.race.publish import publish

pytestmark = needs_chromium
TYPE_AT_ONCE = """(words) => { for (const letter of words) {
    document.activeElement.value += letter;
    document.activeElement.dispatchEvent(new Event('input', {bubbles: true}));
} }"""
DESCRIBED = """['aria-invalid', 'aria-describedby'].map((name) =>
    document.activeElement.getAttribute(name))"""


def kill_race(folder: Path) -> None:
    """End the process that carries out a race as a crash would; the run at hand goes on."""
    words = ["race", "--race", str(folder)]
    found = [
        one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[-3:] == words
    ]
    assert len(found) == 1
    found[0].kill()


def _value(page: Page, name: str) -> str:
    return page.input_value(f"#{name} input, #{name} textarea")


def test_a_found_rate_is_taken_over_and_measurements_are_shown(
    context: BrowserContext, server: PageServer
) -> None:
    folder = server.runs / ".page" / "errands" / "rates"
    (folder / "1").mkdir(parents=True)
    found = {
        "optimizer": "adamw", "suggestion": 0.0005, "text": "Suggested learning rate: 0.0005.",
        "rates": [1e-4, 1e-3, 1e-2], "changes": [0.0, -0.2, None], "smooth": [0.0, -0.1, None],
        "lost": 0.01,
    }  # fmt: skip
    (folder / "1" / "find-lr.json").write_text(json.dumps(found), encoding="utf-8")
    about = {"out": "1", "optimizer": "adamw", "pid": -1, "started_at": 0.0}
    (folder / "about.json").write_text(json.dumps(about), encoding="utf-8")
    rows = [
        Trial("fp32", "plain", ["ladder"], {}, state="done", s_per_step=1.0, peak_gib=4.0),
        Trial("sdpa", "SDPA alone", ["alone"], {"sdpa": {}}, state="done", s_per_step=0.5,
            peak_gib=3.0, on={"sdpa": {"on": True, "detail": "flash"}}),
    ]  # fmt: skip
    machine = {"device": list_devices()[0].name, "torch": "2"}
    measured = Measurement("measure", machine, {"family": "fastspeech2"}, rows, "finished", "now")
    keep(measured, server.runs.parent / "cache" / "measurements" / "one.json")
    page = open_page(context, server, "?tab=train")

    page.click("#trials button")
    page.click("#rates-use")
    page.wait_for_function("document.querySelector('#optimizer-adamw-lr input, "
                           "#optimizer-adamw-lr textarea').value === '0.0005'")  # fmt: skip
    page.wait_for_selector("#measure-rows >> text=SDPA alone")
    page.click("text=Recommended for this machine")
    page.wait_for_selector("#advice >> text=2.00x as fast, memory -25 %")
    page.wait_for_selector("#estimate >> text=The largest step takes about")

    assert "2x as fast" in page.inner_text("#measure-rows")
    assert "sdpa on" in page.inner_text("#measure-rows")


def test_a_race_is_read_downloaded_started_and_stopped(
    context: BrowserContext, server: PageServer
) -> None:
    race = finished_race(server.runs / "races" / "done", {"adamw": 1.0, "lion": 2.0})
    publish(race, lambda text: None)
    page = open_page(context, server, "?tab=race")
    page.wait_for_selector("#race-table >> text=lion")
    with page.expect_download() as download:
        page.click("#race-files >> text=Table (CSV)")

    page.evaluate("timbre.openTab('train')")
    page.fill("#training-steps input, #training-steps textarea", "50")
    page.click("#race-from-train")
    page.wait_for_selector("#race-choice option[value=race]", state="attached")
    page.wait_for_selector("#race .chip-running")
    kill_race(server.runs / "races" / "race")
    page.click("#race-resume")
    page.wait_for_selector("#race .chip-running")
    page.click("#race-stop")
    page.wait_for_selector("#race-resume:visible")

    assert download.value.path().read_text(encoding="utf-8").startswith("entrant,")
    assert page.input_value("#race-choice") == "race"
    page.select_option("#race-choice", "done")
    page.wait_for_selector("#race-verdict >> text=lion against adamw at equal steps: worse")


def test_one_press_starts_a_sick_run_again(context: BrowserContext, server: PageServer) -> None:
    run = Run.create(server.runs / "sick", CONFIG)
    run.events.append(RunStarted(1, 20, 10))
    for step in range(1, 13):
        metrics = {"train/loss": float(step), "train/lr": 1e-3, "perf/s_per_step": 0.1}
        run.events.append(StepDone(step, metrics))
    run.events.append(Notice("warning", "The loss rose.", "Stop it.", 12, offer="rescue"))
    page = open_page(context, server, "?tab=live&run=sick")

    page.click("#live-alert button.rescue")
    page.wait_for_function("timbre.run === 'sick-adamw'")
    page.wait_for_selector(".chip-finished:visible")

    again = Run.open(server.runs / "sick-adamw")
    assert again.config.optimizer.options["lr"] == 0.0002
    assert again.status().state == "finished"
    assert page.inner_text("#live-alert") == ""


def test_a_wrong_field_is_marked_as_it_is_edited_and_opened_when_training_is_refused(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_page(context, server, "?tab=train")
    page.wait_for_selector("#lr-curve svg")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.click("#training-steps input, #training-steps textarea")
    page.evaluate(TYPE_AT_ONCE, "many steps")
    page.wait_for_selector("#training-steps .field-problem >> text=is 'many steps'; expected")
    checks = [url for url in asked if "queue/join" in url]
    spoken = page.text_content("#fields-said")
    described = page.evaluate(DESCRIBED)
    page.fill("#training-steps input, #training-steps textarea", "20")
    page.wait_for_selector("#training-steps .field-problem", state="detached")
    page.click("text=More options: validation, previews, checkpoints")
    page.click("#training-more > summary")
    page.fill("#training-keep_last input", "0")
    page.wait_for_selector("#training-keep_last .field-problem")
    page.click("text=More options: validation, previews, checkpoints")
    page.wait_for_selector("#training-keep_last", state="hidden")
    page.click("#start-training")
    page.wait_for_function("document.activeElement.closest('#training-keep_last')")
    page.fill("#training-keep_last input", "3")
    page.check("#dataset input[value='My recordings (Data tab)']")
    page.click("#start-training")
    page.wait_for_function("document.activeElement.closest('#data-train_csv')")
    nothing = page.inner_text("#data-train_csv .field-problem")
    page.fill("#data-train_csv :is(input, textarea)", "/nowhere/train.csv")
    page.click("#check-data")
    page.wait_for_selector("#data-train_csv .field-problem >> text=nowhere/train.csv does")

    # A check and an estimate, not one of each for every letter: they came without a pause.
    assert 1 <= len(checks) < 10
    assert "expected a whole number" in (spoken or "")
    assert described == ["true", "training-steps-problem"]
    assert "no training data" in nothing
    assert page.evaluate("document.querySelectorAll('.field-problem').length") == 1

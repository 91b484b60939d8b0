"""The page in a real browser: what a person sees and presses, with a made-up training process.

Tests wait on what the live panel publishes (`window.timbre`), never for a while.
"""

import json
import math
from pathlib import Path
from typing import Any

import psutil
import pytest
from _browser import Starter, needs_chromium, open_page, stop_run, watch_run
from _clips import write_list, write_tone
from _page_server import PageServer
from playwright.sync_api import Browser, BrowserContext, Page

from trainer import Run, RunConfig
from trainer.config import TrainingConfig
from trainer.library import RunLibrary

pytestmark = needs_chromium
TABS = ("start", "data", "train", "live", "listen", "runs")
PHONE = {"width": 375, "height": 740}
TAP = """() => {
    const stream = document.querySelector('#speech audio').srcObject;
    const context = new AudioContext(), heard = context.createAnalyser();
    context.createMediaStreamSource(stream).connect(heard);
    const samples = new Float32Array(heard.fftSize);
    window.tap = () => { heard.getFloatTimeDomainData(samples); return Math.max(...samples); };
}"""
"""Lets a test measure how loud the player is; the tone of the made-up speaker peaks at 0.27."""
PLACES = "[timbre.run, timbre.cursor, timbre.step, timbre.points]"


def test_a_newcomer_trains_the_demo_and_hears_it(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_page(context, server)

    page.click("#demo-button")
    page.wait_for_function("timbre.step > 20")
    page.wait_for_function("timbre.state === 'finished'")
    audio = page.locator("#live-previews audio").first
    audio.evaluate("audio => audio.play()")
    page.wait_for_function("document.querySelector('#live-previews audio').currentTime > 0.2")

    assert page.evaluate("timbre.run") == "demo-voice"
    assert page.evaluate("timbre.series.steps.get('step').length") == 300
    assert "sdpa on" in page.inner_text("#live-optimizations")
    assert page.inner_text(".preview span") == "Hello <b>there</b>"
    page.click("#live-listen")
    page.wait_for_selector("#listen-previews audio")
    assert page.input_value("#listen-run input") == "demo-voice"


def test_a_reload_and_a_second_tab_show_the_whole_curve(
    context: BrowserContext, server: PageServer, start: Starter
) -> None:
    run = start("reloaded", 100_000)
    page = watch_run(context, server, run)
    page.wait_for_function("timbre.step > 30")

    page.reload()
    page.wait_for_function("window.timbre && timbre.step > 40")
    second = watch_run(context, server, run)
    second.wait_for_function("timbre.step > 50")
    stop_run(run)
    for shown in (page, second):
        shown.wait_for_function("timbre.state === 'stopped'")

    steps = "timbre.series.steps.get('step')"
    assert page.evaluate(steps) == second.evaluate(steps)
    assert page.evaluate(f"{steps}[0]") == 1
    assert page.evaluate(PLACES) == second.evaluate(PLACES)


@pytest.mark.fault("A5")
def test_a_killed_server_loses_nothing(
    context: BrowserContext, server: PageServer, start: Starter
) -> None:
    run = start("survivor", 100_000)
    heir = RunConfig(training=TrainingConfig(steps=5))
    RunLibrary(server.runs).enqueue("heir", heir)
    page = watch_run(context, server, run)
    page.wait_for_function("timbre.step > 10")

    server.kill()
    page.wait_for_selector("#strip .notice:not([hidden])")
    notice = page.inner_text("#strip .notice")
    before = page.evaluate("timbre.step")
    for logged in run.follow(poll_s=0.02):
        if getattr(logged.event, "step", 0) > before + 50:
            break
    server.restart()
    page.wait_for_function(f"timbre.step > {before + 50}")
    page.wait_for_selector("#strip .notice", state="hidden")
    page.click("#live-stop")
    page.wait_for_function("timbre.state === 'stopped'")
    steps = page.evaluate("timbre.series.steps.get('step')")
    page.evaluate("timbre.show('heir')")
    page.wait_for_function("timbre.run === 'heir' && timbre.state === 'finished'")

    assert "the training goes on" in notice
    assert steps == list(range(1, steps[-1] + 1))


def test_stop_saves_and_resume_goes_on_without_doubled_steps(
    context: BrowserContext, server: PageServer, start: Starter
) -> None:
    run = start("stopped", 100_000)
    page = watch_run(context, server, run)
    page.wait_for_function("timbre.step > 20")

    page.click("#live-stop")
    page.wait_for_function("timbre.state === 'stopped'")
    stopped_at = page.evaluate("timbre.step")
    page.click("#live-resume")
    page.wait_for_function(f"timbre.step > {stopped_at + 20}")
    page.click("#live-save")
    page.click("#live-preview")
    page.wait_for_selector("#live-previews .preview")
    page.click("#live-stop")
    page.wait_for_function("timbre.state === 'stopped'")

    steps = page.evaluate("timbre.series.steps.get('step')")
    assert steps == list(range(1, steps[-1] + 1))
    assert page.evaluate("timbre.series.markedAs('started').length") == 2
    assert page.evaluate("timbre.series.markedAs('checkpoint').length") == 3


@pytest.mark.parametrize(
    ("end", "state", "words"),
    [
        ("fail", "failed", "ran out of memory. Halve the batch size"),
        ("nan", "failed", "The loss is no number."),
        ("vanish", "interrupted", "Press Resume"),
    ],
)
def test_a_run_that_ends_badly_says_why_and_what_to_do(
    context: BrowserContext, server: PageServer, start: Starter, end: str, state: str, words: str
) -> None:
    run = start(f"ends-{end}", 1000, end)

    page = watch_run(context, server, run)
    page.wait_for_function(f"timbre.state === '{state}'")

    assert words in page.inner_text("#live")
    assert page.is_visible("#live-resume")
    assert not page.is_visible("#live-stop")


def test_a_hundred_thousand_points_stay_light(context: BrowserContext, server: PageServer) -> None:
    run = Run.create(server.runs / "long", RunConfig(training=TrainingConfig(steps=200_000)))
    _write_history(run, 100_000)
    lock = run.take()
    sizes: list[int] = []
    page = context.new_page()
    page.on("response", lambda answer: _note_size(answer, sizes))
    page.goto(server.url + "?tab=live&run=long")
    page.wait_for_function("window.timbre && timbre.points > 0 && timbre.step === 100000")
    _write_history(run, 100_020, first=100_001)
    page.wait_for_function("timbre.step === 100020")
    page.wait_for_function("timbre.updates > 5")
    lock.release()

    heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
    draw_ms = page.evaluate(
        "(() => { const from = performance.now(); timbre.wake();"
        " const chart = document.querySelector('#live canvas');"
        " chart.dispatchEvent(new PointerEvent('pointermove', {offsetX: 200}));"
        " return performance.now() - from; })()"
    )
    assert page.evaluate("Math.max(...timbre.series.steps.get('train/loss'))") == 99
    assert sizes[0] < 120_000
    assert max(sizes[1:]) < 5_000
    assert min(sizes[1:]) < 2_000
    assert heap < 60
    assert draw_ms < 250


def _note_size(answer: Any, sizes: list[int]) -> None:
    if "/rows" in answer.url:
        sizes.append(len(answer.body()))


def _write_history(run: Run, last: int, first: int = 1) -> None:
    """Append steps as a training process would have, one of them with a spike."""
    started = {"first_step": 1, "last_step": 200_000, "steps_per_epoch": 100}
    head = {"time": 1.7e9, "type": "RunStarted", "facts": {}, "optimizations": {}} | started
    lines = [json.dumps(head)] if first == 1 else []
    for step in range(first, last + 1):
        loss = 99.0 if step == 55_555 else round(1 + 5 * math.exp(-step / 20_000), 6)
        metrics = {"train/loss": loss, "train/lr": 1e-4, "perf/s_per_step": 0.05}
        line = {"time": 1.7e9 + step, "type": "StepDone", "step": step, "metrics": metrics}
        lines.append(json.dumps(line))
    with run.events.path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


@pytest.mark.fault("F1")
def test_eight_tabs_of_one_browser_all_load(
    context: BrowserContext, server: PageServer, start: Starter
) -> None:
    run = start("eight", 100_000)

    pages = [watch_run(context, server, run) for _ in range(8)]
    for page in pages:
        page.wait_for_function("timbre.step > 5")

    stop_run(run)
    assert len(pages) == 8


def test_lists_of_any_language_are_checked_and_heard(
    context: BrowserContext, server: PageServer, tmp_path: Path
) -> None:
    texts = ["안녕하세요", "ሰላም ለዓለም", "سلام دنیا", "<img src=x onerror=window.hit=1>"]
    clips = [write_tone(tmp_path / f"clip-{i}.wav") for i in range(4)]
    rows = [f"{clip.name}|{text}" for clip, text in zip(clips, texts, strict=True)]
    listed = write_list(tmp_path / "train.csv", *rows, "gone.wav|x", encoding="utf-8-sig")
    page = open_page(context, server, "?tab=data")

    page.set_input_files("#upload input[type=file]", [str(listed), *map(str, clips)])
    page.wait_for_selector("#data-report .fact")
    report = page.inner_text("#data-report")
    page.wait_for_selector("#ledger >> text=سلام دنیا")
    ledger = page.inner_text("#ledger")
    page.click("#ledger >> text=سلام دنیا")
    page.wait_for_selector("#clip-player >> text=0:01")
    page.check("#only-problems input")
    page.wait_for_selector("#tab-data >> text=Rows 1 to 1 of 1")

    assert "4 clips" in report
    assert "1 rows with problems" in report
    assert all(text in ledger for text in texts)
    assert page.evaluate("window.hit") is None
    assert "gone.wav is not there" in page.inner_text("#ledger")


def test_the_run_has_exactly_the_settings_of_the_form(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_page(context, server, "?tab=train")

    page.fill("#run-name input, #run-name textarea", "chosen")
    page.fill("#training-steps input, #training-steps textarea", "7")
    page.check("#optimization-gradient_checkpointing input")
    page.fill("#optimizer-adamw-lr input, #optimizer-adamw-lr textarea", "5e-4")
    page.click("#schedule-choice input")
    page.get_by_role("option", name="Linear").click()
    page.wait_for_selector("#lr-curve svg >> text=step 7")
    page.click("#start-training")
    page.wait_for_function("timbre.run === 'chosen' && timbre.state === 'finished'")

    config = Run.open(server.runs / "chosen").config
    assert (config.training.steps, config.schedule.name) == (7, "linear")
    assert "gradient_checkpointing" in config.optimizations
    assert config.optimizer.options == {"lr": 5e-4}
    assert Path(config.data.train_csv).is_file()


def test_unusable_settings_are_all_named_and_nothing_starts(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_page(context, server, "?tab=train")

    page.fill("#run-name input, #run-name textarea", "never")
    page.fill("#training-steps input, #training-steps textarea", "many")
    page.fill("#optimizer-adamw-lr input, #optimizer-adamw-lr textarea", "fast")
    page.click("#start-training")
    page.wait_for_selector("#train-problem li")

    problem = page.inner_text("#train-problem")
    assert "Steps (steps) is 'many'" in problem
    assert "Learning rate (lr) is 'fast'" in problem
    assert not (server.runs / "never").exists()


def test_the_page_shows_the_command_of_the_same_run(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_page(context, server, "?tab=train")

    page.fill("#training-steps input, #training-steps textarea", "7")
    page.click("#preview-command")
    page.wait_for_selector("#command textarea")

    command = page.input_value("#command textarea")
    assert command.startswith("python -m trainer train --run ")
    assert "--steps 7" in command


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_scrolls_sideways_on_a_phone(
    browser: Browser, server: PageServer, scheme: Any
) -> None:
    context = browser.new_context(viewport=PHONE, color_scheme=scheme)  # type: ignore[arg-type]
    page = open_page(context, server)

    wide = {}
    for tab in TABS:
        page.evaluate(f"timbre.openTab('{tab}')")
        page.wait_for_selector(f"#tab-{tab}", state="visible")
        wide[tab] = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    is_dark = page.evaluate("document.body.classList.contains('dark')")
    context.close()

    assert wide == dict.fromkeys(TABS, 0)
    assert is_dark == (scheme == "dark")


def test_an_unknown_run_in_the_address_is_told(browser: Browser, server: PageServer) -> None:
    page = browser.new_page()
    page.goto(server.url + "?tab=live&run=nobody")

    page.wait_for_selector("#live-empty >> text=no run named 'nobody'")
    page.close()


def test_a_sentence_sounds_before_it_is_whole(context: BrowserContext, server: PageServer) -> None:
    run = Run.create(server.runs / "talker", RunConfig())
    page = _listen(context.new_page(), server, run)

    page.fill("#listen-text textarea", "Good morning.")
    page.click("#speak-now")
    page.wait_for_function("timbre.speech.state === 'playing'")
    page.evaluate(TAP)
    page.wait_for_function("tap() > 0.2")
    words = page.inner_text("#speech .quiet")
    state = page.evaluate("timbre.speech.state")
    (run.folder / "go-on").touch()
    page.wait_for_function("timbre.speech.state === 'ended'")
    page.wait_for_function("document.querySelector('#speech audio').duration > 0")
    length_s = page.evaluate("document.querySelector('#speech audio').duration")

    assert state == "playing"
    assert words.startswith("First sound after")
    assert abs(length_s - 3) < 0.05


def test_a_sentence_that_cannot_be_spoken_says_why(browser: Browser, server: PageServer) -> None:
    page = _listen(browser.new_page(), server, Run.create(server.runs / "mute", RunConfig()))

    page.fill("#listen-text textarea", "refuse")
    page.click("#speak-now")
    page.wait_for_selector("#speech .notice >> text=Nothing of this can be spoken.")
    page.close()


def test_stop_ends_the_process_that_speaks(context: BrowserContext, server: PageServer) -> None:
    run = Run.create(server.runs / "stopper", RunConfig())
    page = _listen(context.new_page(), server, run)

    page.fill("#listen-text textarea", "Good morning.")
    page.click("#speak-now")
    page.wait_for_function("timbre.speech.state === 'playing'")
    speaker = psutil.Process(int((run.folder / "speaker.pid").read_text(encoding="utf-8")))
    page.click("#speech >> text=Stop")
    psutil.wait_procs([speaker], timeout=10)

    assert not speaker.is_running()


def _listen(page: Page, server: PageServer, run: Run) -> Page:
    page.goto(server.url + f"?tab=listen&run={run.name}")
    page.wait_for_function(f"document.querySelector('#listen-run input')?.value === '{run.name}'")
    return page


def test_a_voice_trained_for_real_speaks(
    context: BrowserContext, server: PageServer, tmp_path: Path
) -> None:
    demo = Path(__file__).parent.parent / "assets" / "demo"
    for name in ("train", "eval"):
        lines = (demo / f"{name}.csv").read_text(encoding="utf-8").splitlines()[1:7]
        rows = [f"{demo / line.split('|')[0]}|" + line.split("|", 1)[1] for line in lines]
        write_list(tmp_path / f"{name}.csv", "audio_file|text|speaker_name", *rows)
    page = open_page(context, server, "?tab=data")

    page.fill("#data-train_csv input, #data-train_csv textarea", str(tmp_path / "train.csv"))
    page.fill("#data-eval_csv input, #data-eval_csv textarea", str(tmp_path / "eval.csv"))
    page.click("#check-data")
    page.wait_for_selector("#data-report .fact")
    page.evaluate("timbre.openTab('train')")
    page.get_by_label("The recordings under Data").check()
    page.fill("#run-name input, #run-name textarea", "real")
    page.fill("#training-steps input, #training-steps textarea", "3")
    page.click("#start-training")
    page.wait_for_function("timbre.run === 'real' && timbre.state === 'finished'", timeout=90_000)
    page.click("#live-more-box summary")
    page.fill("#live-more-count", "2")
    page.click("#live-more")
    page.wait_for_function("timbre.step === 5 && timbre.state === 'finished'", timeout=90_000)
    page.evaluate("timbre.openTab('listen')")
    page.wait_for_function("document.querySelector('#listen-run input').value === 'real'")
    page.fill("#listen-text textarea", "Good morning.")
    page.click("#speak-now")
    page.wait_for_function("timbre.speech.state === 'ended'", timeout=60_000)
    page.click("#speak")
    page.wait_for_selector("#spoken >> text=/0:0[1-9]/", timeout=60_000)

    assert Run.open(server.runs / "real").status().facts["train_clips"] == 6

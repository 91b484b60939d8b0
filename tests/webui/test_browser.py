"""The page in a real browser: what a person sees and presses, with a made-up training process.

Tests wait on what the live panel publishes (`window.timbre`), never for a while.
"""

import json
import math
from pathlib import Path
from typing import Any

import psutil
import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.helpers.browser import Starter, needs_chromium, new_context, open_page, watch_run
from tests.helpers.clips import write_list, write_tone
from tests.helpers.page_server import DEMO_CLIPS, DEMO_STEPS, PageServer
from trainer import Run, RunConfig
from trainer.core.run_config import TrainingConfig
from trainer.runs.run_store import RunStore

pytestmark = needs_chromium
TAP = """() => {
    const stream = document.querySelector('#speech audio').srcObject;
    const context = new AudioContext(), heard = context.createAnalyser();
    context.createMediaStreamSource(stream).connect(heard);
    const samples = new Float32Array(heard.fftSize);
    window.tap = () => { heard.getFloatTimeDomainData(samples); return Math.max(...samples); };
}"""
"""Lets a test measure how loud the player is; the tone of the made-up speaker peaks at 0.27."""
OTHERS = (
    "train/loss/mel_ce", "train/loss/text_ce", "train/lr", "train/epoch", "train/grad_norm",
    "perf/s_per_step", "perf/audio_s_per_s", "perf/data_wait_s", "perf/forward_s",
    "perf/backward_s", "perf/optimizer_s", "perf/memory_gib", "perf/memory_reserved_gib",
    "perf/memory_peak_gib", "perf/host_memory_gib", "perf/utilisation_percent",
    "perf/temperature_c",
)  # fmt: skip
"""What a run on a GPU tells of every step besides its loss."""
LINES = """() => {
    const pen = CanvasRenderingContext2D.prototype, lineTo = pen.lineTo;
    let count = 0;
    pen.lineTo = function (...place) { count += 1; return lineTo.apply(this, place); };
    const chart = [...document.querySelectorAll('#live .chart canvas')].find((e) => e.offsetParent);
    chart.dispatchEvent(new PointerEvent('pointermove', {clientX: 400}));
    pen.lineTo = lineTo;
    return count;
}"""
"""Counts the lines that are drawn when the pointer moves over a chart."""
PLACES = "[timbre.run, timbre.cursor, timbre.step, timbre.points]"


def test_a_newcomer_trains_the_demo_and_hears_it(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_page(context, server)

    page.click("#demo-button")
    page.wait_for_function("timbre.step > 5")
    page.wait_for_function("timbre.state === 'finished'")
    audio = page.locator("#live-previews audio").first
    audio.evaluate("audio => audio.play()")
    page.wait_for_function("document.querySelector('#live-previews audio').currentTime > 0.2")

    assert page.evaluate("timbre.run") == "demo-voice"
    assert page.evaluate("timbre.series.steps.get('step').length") == DEMO_STEPS
    losses = page.evaluate("timbre.series.steps.get('train/loss')")
    assert sum(losses[-5:]) < sum(losses[:5])
    assert "on" in page.inner_text("#live-optimizations")
    page.click("#live-listen")
    page.wait_for_selector("#listen-previews audio")
    assert page.input_value("#listen-run input") == "demo-voice"
    page.get_by_role("tab", name="Runs").click()
    row = page.locator("details.more-links").first
    row.locator("summary").click()
    row.get_by_role("button", name="Export voice", exact=True).click()
    page.wait_for_selector("#exported a")
    exported = server.runs / "demo-voice" / "exports"
    assert [path.name for path in exported.glob("*/model.safetensors")]


def test_a_reload_and_a_second_tab_show_the_whole_curve(
    context: BrowserContext, server: PageServer, start: Starter
) -> None:
    # Few enough steps that no page thins them, however late the second one asks.
    run = start("reloaded", 400)
    page = watch_run(context, server, run)
    page.wait_for_function("timbre.step > 30")

    page.reload()
    page.wait_for_function("window.timbre && timbre.step > 40")
    second = watch_run(context, server, run)
    for shown in (page, second):
        shown.wait_for_function("timbre.state === 'finished'")

    steps = "timbre.series.steps.get('step')"
    assert page.evaluate(steps) == second.evaluate(steps)
    assert page.evaluate(f"{steps}[0]") == 1
    assert page.evaluate(PLACES) == second.evaluate(PLACES)


def test_runs_that_end_badly_say_why_and_what_to_do(
    browser: Browser, server: PageServer, start: Starter
) -> None:
    ends = {
        "fail": ("failed", "ran out of memory. Halve the batch size"),
        "nan": ("failed", "The loss is NaN or infinite."),
        "vanish": ("interrupted", "Press Resume"),
    }
    for end in ends:
        start(f"ends-{end}", 1000, end)
    # A context of its own: the browser logs the 404 of the run that is not there as an error.
    page = open_page(new_context(browser), server, "?tab=live&run=nobody")
    page.wait_for_selector("#live-empty >> text=no run named 'nobody'")

    shown = {}
    for end, (state, _) in ends.items():
        page.evaluate(f"timbre.show('ends-{end}')")
        page.wait_for_function(f"timbre.run === 'ends-{end}' && timbre.state === '{state}'")
        page.wait_for_selector("#live-resume", state="visible")
        shown[end] = page.inner_text("#live"), page.is_visible("#live-stop")
    page.context.close()

    for end, (_, words) in ends.items():
        assert words in shown[end][0]
        assert not shown[end][1]


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

    context.new_cdp_session(page).send("HeapProfiler.collectGarbage")
    heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
    drawn = page.evaluate(LINES)
    assert page.evaluate("Math.max(...timbre.series.steps.get('train/loss'))") == 99
    assert len(page.evaluate("Object.keys(timbre.series.steps.columns)")) == 20
    assert sizes[0] < 120_000
    assert max(sizes[1:]) < 5_000
    assert min(sizes[1:]) < 2_000
    assert heap < 60
    # 17 lines of at most 4000 points each, not of 100 000; a busy machine takes longer for them.
    assert 0 < drawn < 70_000


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
        metrics = {"train/loss": loss, **dict.fromkeys(OTHERS, 0.05 + step / 1e7)}
        line = {"time": 1.7e9 + step, "type": "StepDone", "step": step, "metrics": metrics}
        lines.append(json.dumps(line))
    with run.events.path.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


@pytest.mark.fault("F1")
def test_eight_tabs_of_one_browser_all_load(context: BrowserContext, server: PageServer) -> None:
    run = Run.create(server.runs / "eight", RunConfig())
    _write_history(run, 5)

    pages = [watch_run(context, server, run) for _ in range(8)]
    _write_history(run, 9, first=6)
    for page in pages:
        page.wait_for_function("timbre.step === 9")

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
    assert "gone.wav was not found" in page.inner_text("#ledger")


def test_the_run_has_exactly_the_settings_of_the_form(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_page(context, server, "?tab=train")

    page.fill("#run-name input, #run-name textarea", "chosen")
    page.fill("#training-steps input, #training-steps textarea", "7")
    page.check("#optimization-gradient_checkpointing input")
    page.fill("#optimizer-adamw-lr input, #optimizer-adamw-lr textarea", "5e-4")
    page.select_option("#schedule-choice select", "linear")
    page.wait_for_selector("#lr-curve svg >> text=step 7")
    page.click("#start-training")
    page.wait_for_function("timbre.run === 'chosen' && timbre.state === 'finished'")

    config = Run.open(server.runs / "chosen").config
    assert (config.training.steps, config.schedule.name) == (7, "linear")
    assert "gradient_checkpointing" in config.optimizations
    assert config.optimizer.options == {"lr": 5e-4}
    assert Path(config.data.train_csv).is_file()


def test_unusable_settings_are_all_named_and_usable_ones_are_a_command(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_page(context, server, "?tab=train")

    page.fill("#run-name input, #run-name textarea", "never")
    page.fill("#training-steps input, #training-steps textarea", "many")
    page.fill("#optimizer-adamw-lr input, #optimizer-adamw-lr textarea", "fast")
    page.click("#start-training")
    page.wait_for_selector("#train-problem li")
    problem = page.inner_text("#train-problem")
    page.fill("#training-steps input, #training-steps textarea", "7")
    page.fill("#optimizer-adamw-lr input, #optimizer-adamw-lr textarea", "")
    page.click("#preview-command")
    page.wait_for_selector("#command textarea")
    command = page.input_value("#command textarea")

    assert "Steps (steps) is 'many'" in problem
    assert "Learning rate (lr) is 'fast'" in problem
    assert not (server.runs / "never").exists()
    assert command.startswith("python -m trainer train --run ")
    assert "--steps 7" in command


def test_a_sentence_sounds_before_it_is_whole_or_says_why_not_and_can_be_stopped(
    browser: Browser, server: PageServer
) -> None:
    run = Run.create(server.runs / "talker", RunConfig())
    page = _listen(new_context(browser).new_page(), server, run)

    page.fill("#listen-text textarea", "Good morning.")
    page.click("#speak-now")
    page.wait_for_function("['playing', 'failed'].includes(timbre.speech.state)")
    assert page.evaluate("timbre.speech.state") == "playing", page.inner_text("#speech")
    speaker = psutil.Process(int((run.folder / "speaker.pid").read_text(encoding="utf-8")))
    page.click("#speech >> text=Stop")
    psutil.wait_procs([speaker], timeout=120)
    page.fill("#listen-text textarea", "On and on.")
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
    page.fill("#listen-text textarea", "refuse")
    page.click("#speak-now")
    page.wait_for_selector("#speech .notice >> text=Nothing of this can be spoken.")
    page.context.close()

    assert not speaker.is_running()
    assert state == "playing"
    assert words.startswith("First sound after")
    spoken_s = float((run.folder / "spoken-s").read_text(encoding="utf-8"))
    assert abs(length_s - spoken_s) < 0.05


def _listen(page: Page, server: PageServer, run: Run) -> Page:
    page.goto(server.url + f"?tab=listen&run={run.name}")
    page.wait_for_function(f"document.querySelector('#listen-run input')?.value === '{run.name}'")
    return page


@pytest.mark.fault("A5")
def test_real_training_survives_a_killed_server_stops_goes_on_and_speaks(
    context: BrowserContext, server: PageServer
) -> None:
    page = open_page(context, server, "?tab=train")
    page.fill("#run-name input, #run-name textarea", "real-demo")
    page.fill("#training-steps input, #training-steps textarea", "100000")
    page.click("#start-training")
    page.wait_for_function("timbre.run === 'real-demo' && timbre.step > 5")
    # Gradio reloads a page whose server dies during an event; the estimate may take long.
    page.wait_for_selector("#estimate .notice b", state="attached")
    run = Run.open(server.runs / "real-demo")
    RunStore(server.runs).enqueue("heir", RunConfig(training=TrainingConfig(steps=5)))

    server.kill()
    page.wait_for_selector("#strip .notice:not([hidden])")
    notice = page.inner_text("#strip .notice")
    before = page.evaluate("timbre.step")
    _wait_for_step(run, before + 10)
    server.restart()
    page.wait_for_function(f"timbre.step > {before + 10}")
    page.wait_for_selector("#strip .notice", state="hidden")
    page.click("#live-stop")
    page.wait_for_function("timbre.state === 'stopped'")
    stopped_at = page.evaluate("timbre.step")
    page.evaluate("timbre.show('heir')")
    page.wait_for_function("timbre.run === 'heir' && timbre.state === 'finished'")
    page.goto(server.url + "?tab=live&run=real-demo")
    page.wait_for_function("window.timbre && timbre.updates > 3")
    page.click("#live-resume")
    page.wait_for_function(f"timbre.step > {stopped_at + 2}")
    page.click("#live-stop")
    page.wait_for_function("timbre.state === 'stopped'")
    steps = page.evaluate("timbre.series.steps.get('step')")
    starts = page.evaluate("timbre.series.markedAs('started').length")
    page.evaluate("timbre.openTab('listen')")
    page.wait_for_function("document.querySelector('#listen-run input').value === 'real-demo'")
    page.fill("#listen-text textarea", "Good morning.")
    page.click("#speak-now")
    page.wait_for_function("timbre.speech.state === 'ended'")

    assert "training continues" in notice
    assert steps == list(range(1, steps[-1] + 1))
    assert starts == 2
    assert run.status().facts["train_clips"] == DEMO_CLIPS["train_csv"]


def _wait_for_step(run: Run, step: int) -> None:
    for logged in run.follow(poll_s=0.02):
        if getattr(logged.event, "step", 0) > step:
            return

"""Runs in a real browser: the queue, more steps, the trash and its undo, copies and comparisons."""

from playwright.sync_api import Browser, BrowserContext, Page

from tests.helpers.browser import (
    Starter,
    needs_chromium,
    new_context,
    open_page,
    stop_run,
    watch_run,
)
from tests.helpers.page_server import PageServer
from trainer import Run, RunConfig
from trainer.core.events import CheckpointSaved, RunFinished, RunStarted, StepDone, ValidationDone
from trainer.core.run_config import Choice, DataConfig, TrainingConfig
from trainer.runs.run_store import RunStore

pytestmark = needs_chromium
QUEUED = "[...document.querySelectorAll('#queue li')].map((item) => item.dataset.run).join()"


def _finished(server: PageServer, name: str, config: RunConfig, loss: float = 1.0) -> Run:
    """Make a run that trained for 20 steps."""
    run = Run.create(server.runs / name, config)
    run.events.append(RunStarted(1, 20, 10))
    for step in range(1, 21):
        metrics = {"train/loss": loss + 1 / step, "train/lr": 1e-3, "perf/s_per_step": 0.1}
        run.events.append(StepDone(step, metrics))
    run.events.append(ValidationDone(20, {"val/loss": loss}))
    run.events.append(CheckpointSaved(20, "checkpoints/step-00000020", True, 10, 0.1))
    run.events.append(RunFinished("finished", 20))
    return run


def _press(page: Page, run: str, label: str) -> None:
    """Press a button that lies under More in the row of a run, which is folded still."""
    page.click(f"tr[data-run={run}] summary")
    page.click(f"tr[data-run={run}] button >> text={label}")


def test_queued_runs_are_reordered_and_train_in_order(
    context: BrowserContext, server: PageServer
) -> None:
    RunStore(server.runs).queue.pause(True)
    page = open_page(context, server, "?tab=train")
    page.fill("#training-steps input, #training-steps textarea", "30")
    for name in ("first", "second", "third"):
        page.fill("#run-name input, #run-name textarea", name)
        page.click("#add-to-queue")
        page.wait_for_selector(f".toast-body >> text={name} was added to the queue")
    page.evaluate("timbre.openTab('runs')")
    page.wait_for_function(f"{QUEUED} === 'first,second,third'")

    page.click("#queue li[data-run=third] >> text=Move up")
    page.wait_for_function(f"{QUEUED} === 'first,third,second'")
    page.click("#queue li[data-run=second] >> text=Remove")
    page.wait_for_function(f"{QUEUED} === 'first,third'")
    page.click("#queue >> text=Resume")
    for name in ("first", "third"):
        page.wait_for_selector(f"tr[data-run={name}] .chip-finished")

    runs = [Run.open(server.runs / name) for name in ("first", "third")]
    assert runs[0].begun_at() < runs[1].begun_at()
    assert [run.status().step for run in runs] == [30, 30]
    assert Run.open(server.runs / "second").status().state == "created"
    assert page.is_hidden("#queue")


def test_more_steps_are_added_after_the_end_and_while_it_trains(
    context: BrowserContext, server: PageServer, start: Starter
) -> None:
    run = start("longer", 40)
    settings = (run.folder / "run.json").read_bytes()
    page = watch_run(context, server, run)
    page.wait_for_function("timbre.state === 'finished'")

    page.click("#live-more-box summary")
    page.fill("#live-more-count", "100000")
    words = page.inner_text("#live-more-box")
    page.click("#live-more")
    page.wait_for_function("timbre.state === 'running' && timbre.step > 60")
    page.fill("#live-more-count", "7")
    page.click("#live-more")
    page.wait_for_selector("#live-words >> text=of 100047")
    stop_run(run)
    page.wait_for_selector("#live-notices >> text=now ends at step 100047")

    steps = page.evaluate("timbre.series.steps.get('step')")
    assert steps == list(range(1, steps[-1] + 1))
    assert "end at step 100040" in words
    assert "Planned steps keep their learning rates" in words
    assert (run.folder / "run.json").read_bytes() == settings


def test_a_run_is_discarded_while_it_trains_and_taken_back(
    browser: Browser, server: PageServer, start: Starter
) -> None:
    run = start("thrown", 100_000)
    page = watch_run(new_context(browser), server, run)
    page.wait_for_function("timbre.step > 5")

    page.click("#live-discard")
    after_one_press = run.status().state
    page.click("#live-discard")
    page.wait_for_selector("#live-empty >> text=thrown was moved to the trash")
    page.evaluate("timbre.openTab('runs')")
    page.click("#trash summary")
    page.click("#trash .recent-run:has-text('thrown') >> text=Restore")
    page.wait_for_selector("tr[data-run=thrown] .chip-stopped")
    page.context.close()

    assert after_one_press == "running"
    assert run.status().step > 5


def test_a_deletion_is_undone_with_one_press(context: BrowserContext, server: PageServer) -> None:
    run = _finished(server, "slip", RunConfig())
    page = open_page(context, server, "?tab=runs")

    _press(page, "slip", "Delete")
    page.click("tr[data-run=slip] button >> text=Move to trash?")
    page.wait_for_selector("#undo >> text=slip was moved to the trash")
    was_gone = not run.folder.exists()
    page.click("#undo button")
    page.wait_for_selector("tr[data-run=slip]")

    assert was_gone
    assert run.status().step == 20


def test_the_settings_of_a_run_are_copied_to_the_form(
    context: BrowserContext, server: PageServer
) -> None:
    config = RunConfig(
        data=DataConfig(train_csv="/clips/mine.csv"),
        training=TrainingConfig(steps=77, batch_size=3),
        optimizer=Choice("lion", {"lr": 3e-5}),
    )
    _finished(server, "model", config)
    page = open_page(context, server, "?tab=runs")

    _press(page, "model", "Copy settings to Train")
    page.wait_for_selector("#start-training", state="visible")
    page.wait_for_function(
        "document.querySelector('#training-steps textarea, #training-steps input').value === '77'"
    )

    assert page.input_value("#optimizer-lion-lr input, #optimizer-lion-lr textarea") == "3e-05"
    assert page.input_value("#training-batch_size input") == "3"
    assert page.input_value("#run-name input, #run-name textarea") == "model"
    assert page.is_checked("#dataset input[value='My recordings (Data tab)']")


def test_runs_are_found_compared_and_drawn(context: BrowserContext, server: PageServer) -> None:
    for name, family, rate in (("warm", "fastspeech2", 1.0), ("cold", "xtts", 2.0)):
        data = DataConfig(train_csv=f"/{name}.csv")
        training = TrainingConfig(steps=20, clip_norm=rate)
        config = RunConfig(data=data, training=training, family=Choice(family))
        _finished(server, name, config, loss=rate)
    page = open_page(context, server, "?tab=runs")
    page.wait_for_selector("tr[data-run=cold]")

    page.fill("#runs-filter", "xtts finished")
    page.wait_for_selector("tr[data-run=warm]", state="detached")
    page.fill("#runs-filter", "")
    for name in ("warm", "cold"):
        page.check(f"tr[data-run={name}] input")
    page.wait_for_selector(".comparison canvas")
    page.select_option("#compare-metric", "val/loss")
    with page.expect_download() as started:
        page.click(".comparison >> text=SVG")
    picture = started.value.path().read_text(encoding="utf-8")
    page.click("tr[data-run=cold] summary")
    page.click("tr[data-run=warm] summary")

    differing = page.inner_text(".differences")
    assert "training.clip_norm" in differing
    assert "training.steps" not in differing
    assert "<svg" in picture
    assert page.is_visible("tr[data-run=cold] >> text=Export voice in bf16")
    assert not page.is_visible("tr[data-run=warm] >> text=Export voice in bf16")


def test_numbers_are_downloaded_from_the_live_tab(
    context: BrowserContext, server: PageServer
) -> None:
    run = _finished(server, "kept", RunConfig())
    page = watch_run(context, server, run)

    with page.expect_download() as started:
        page.click("#live-downloads >> text=JSON")

    assert started.value.suggested_filename == "kept.json"
    assert '"train/loss"' in started.value.path().read_text(encoding="utf-8")

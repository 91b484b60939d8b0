"""The Listen tab in a real browser: checkpoints side by side, a blind test, and its ranking."""

import json

from playwright.sync_api import Browser, BrowserContext

from tests.helpers.browser import needs_chromium, new_context, open_page
from tests.helpers.clips import write_tone
from tests.helpers.page_server import PageServer
from trainer import Run, RunConfig
from trainer.inference.listening_test import read_votes

pytestmark = needs_chromium
KINDS = ("svg", "wav")
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"/>'
TEXT = "\uc548\ub155\ud558\uc138\uc694"


def test_a_blind_test_hides_the_names_and_ranks_them(
    context: BrowserContext, server: PageServer
) -> None:
    run = _run_with_takes(server, ["base", "20", "30"])
    page = open_page(context, server, f"?tab=listen&run={run.name}")
    page.wait_for_selector(".court-card[data-entry='20'] canvas")
    page.wait_for_function("document.querySelector('.spectrogram').width > 20")

    page.click("#court-blind")
    hidden = page.inner_text("#ballot")
    for number in range(3):
        page.wait_for_selector(f"#ballot >> text={number} answers now; there are 3 pairs.")
        page.click("#vote-a" if number else "#vote-same")
    page.wait_for_selector("#ballot >> text=3 answers now")
    page.click("#end-blind")
    page.wait_for_selector("#ranking >> text=3 votes.")
    page.evaluate("timbre.switchTheme()")
    grounds = page.evaluate(
        "['court-own', 'court-sentences'].map((id) =>"
        " getComputedStyle(document.getElementById(id)).backgroundColor)"
    )

    assert "rgb(255, 255, 255)" not in grounds
    assert "step" not in hidden and "base" not in hidden
    assert page.locator(".ranking-row").count() == 3
    votes = read_votes(run.folder / "listening" / "votes.jsonl")
    assert sorted(tuple(sorted((vote.first, vote.second))) for vote in votes) == [
        ("20", "30"), ("20", "base"), ("30", "base"),
    ]  # fmt: skip
    assert votes[0].text == TEXT


def _run_with_takes(server: PageServer, entries: list[str]) -> Run:
    """Make a run whose checkpoints spoke already."""
    run = Run.create(server.runs / "court", RunConfig(base="somewhere"))
    for step in (20, 30):
        folder = run.folder / "checkpoints" / f"step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text(f'{{"step": {step}}}', encoding="utf-8")
    lines = []
    for number, entry in enumerate(entries):
        take = {"id": f"{number:020d}", "entry": entry, "text": TEXT, "speaker": "ada"}
        write_tone(run.folder / "listening" / f"{take['id']}.wav", 0.5)
        lines.append(json.dumps(take))
    (run.folder / "listening" / "takes.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return run


def test_the_tab_says_what_its_previews_are_and_speaks_by_keyboard(
    browser: Browser, server: PageServer
) -> None:
    # A context of its own: the browser logs the refusal at the end as an error.
    context = new_context(browser)
    runs = {ending: Run.create(server.runs / f"kind-{ending}", RunConfig()) for ending in KINDS}
    for ending, run in runs.items():
        (run.folder / "previews").mkdir(exist_ok=True)
        preview = run.folder / "previews" / f"step-00000020.{ending}"
        preview.write_text(PICTURE) if ending == "svg" else write_tone(preview)

    heads = {}
    for ending, run in runs.items():
        page = open_page(context, server, f"?tab=listen&run={run.name}")
        page.wait_for_selector("#listen-previews .preview :is(img, audio)")
        heads[ending] = page.inner_text("#listen-previews h3")
    page.fill("#listen-text textarea", "refuse")
    page.press("#listen-text textarea", "Control+Enter")
    page.wait_for_selector("#speech .notice >> text=Nothing of this can be spoken.")
    context.close()

    assert "next to the recorded ones" in heads["svg"]
    assert heads["wav"] == "The same sentence during training"

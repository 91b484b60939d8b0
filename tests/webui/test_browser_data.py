"""The Data tab in a real browser: what stands out, edited texts, and the new CSV they become."""

import os
import zipfile
from pathlib import Path

import numpy as np
import soundfile
from playwright.sync_api import BrowserContext

from tests.helpers.browser import needs_chromium, open_page
from tests.helpers.clips import make_tone, write_list, write_tone
from tests.helpers.page_server import PageServer

pytestmark = needs_chromium
RATE = 16_000


def test_texts_are_edited_beside_the_sound_and_saved_as_a_new_list(
    context: BrowserContext, server: PageServer, tmp_path: Path
) -> None:
    for name, seconds in (("a", 1.0), ("b", 1.5), ("long", 9.0)):
        soundfile.write(tmp_path / f"{name}.wav", 3 * make_tone(seconds, RATE), RATE)
    rows = ["a.wav|Helo there.", "b.wav|Good day.", "long.wav|So long, and thanks."]
    listed = write_list(tmp_path / "train.csv", *rows)
    before = listed.read_bytes()
    page = open_page(context, server, "?tab=data")
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))

    page.fill("#data-train_csv :is(input, textarea)", str(listed))
    page.fill("#data-max_duration_s :is(input, textarea)", "5")
    page.click("#check-data")
    page.wait_for_selector("#findings >> text=All 2 clips were analyzed")
    page.click("#findings tr:has-text('Too long') >> text=Adjust the limit to keep them")
    page.wait_for_selector("#findings >> text=All 3 clips were analyzed")
    page.click("#ledger >> text=Helo there. >> visible=true")
    page.wait_for_selector("#clip-player >> text=0:01")
    page.fill("#clip-text textarea", "Hello there.")
    page.click("#keep-text")
    page.wait_for_selector("#draft-words >> text=1 text changed")
    page.click("#tab-train-button")
    page.click("#start-training")
    page.click("#tab-data-button")
    page.click("#save-draft")
    page.wait_for_selector("#data-report >> text=train-edited.csv: 3 rows")

    assert "would train on the old texts" in asked[0]
    assert page.input_value("#data-max_duration_s :is(input, textarea)") == "9"
    assert listed.read_bytes() == before
    assert "a.wav|Hello there." in (tmp_path / "train-edited.csv").read_text(encoding="utf-8")
    assert page.locator("#draft-box").is_hidden()


def test_a_long_recording_becomes_clips_whose_texts_are_written_by_ear(
    context: BrowserContext, server: PageServer, tmp_path: Path
) -> None:
    sentence = np.sin(np.arange(48_000) / 12) / 2  # 3 s
    tape = np.concatenate([sentence, np.zeros(24_000), sentence])
    soundfile.write(tmp_path / "tape.wav", tape, 16_000)
    page = open_page(context, server, "?tab=data")

    page.click("#tapes > button")
    page.fill("#tapes-path :is(input, textarea)", str(tmp_path / "tape.wav"))
    page.fill("#tapes-speaker :is(input, textarea)", "ada")
    page.click("#cut-tapes")
    page.wait_for_selector("#cut-words >> text=2 clips, 0.1 of 0.1 minutes; 2 have no text yet.")
    page.click("#cut-use")
    page.click("#ledger >> text=No text >> visible=true >> nth=0")
    page.wait_for_selector("#clip-player >> text=0:03")
    page.fill("#clip-text textarea", "One tone.")
    page.click("#keep-text")
    page.wait_for_selector("#draft-words >> text=1 text changed")
    page.click("#save-draft")
    page.wait_for_selector("#data-report >> text=list-edited.csv: 2 rows")
    if folder := os.environ.get("TIMBRE_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / "tapes.png", full_page=True)

    written = (tmp_path / "tape-clips" / "list-edited.csv").read_text(encoding="utf-8")
    assert "tape-0001.wav|One tone.|ada|en\n" in written


def test_an_archive_is_unpacked_and_shown(
    context: BrowserContext, server: PageServer, tmp_path: Path
) -> None:
    rows = [f"{name}.wav|{name} says so" for name in ("ada", "eva")]
    files = [write_tone(tmp_path / f"{name}.wav") for name in ("ada", "eva")]
    archive = tmp_path / "clips.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in (write_list(tmp_path / "train.csv", *rows), *files):
            packed.write(path, f"voice/{path.name}")
    page = open_page(context, server, "?tab=data")

    page.set_input_files("#upload input[type=file]", str(archive))
    page.wait_for_selector("#data-report >> text=2 clips")
    page.click("#ledger >> text=eva says so >> visible=true")
    page.wait_for_selector("#clip-player >> text=0:01")

    assert page.input_value("#data-train_data :is(input, textarea)").endswith("voice")

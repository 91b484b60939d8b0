"""Record the pictures of the README: `python -m assets.make_pictures` (needs Chromium, playwright).

It starts the page on an empty folder, presses "Train a demo voice" and takes a frame of the Live
tab every two seconds until the run has finished. The frames become `assets/screenshots/run.webp`,
the last one `live.png`.
"""

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

PROJECT = Path(__file__).resolve().parent.parent
SCREENSHOTS = PROJECT / "assets" / "screenshots"
SIZE = {"width": 1280, "height": 860}
FRAME_MS = 2000
SHOWN_MS = 400
"""How long the picture shows a frame: five times faster than the run."""
LAST_SHOWN_MS = 3000
WIDTH = 960
"""Pixels; at this width text can be read and the file stays below 3 MB."""


def main() -> None:
    """Record a run of the demo."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, str(PROJECT / "app.py"), "--no-browser", "--no-token"]
        words += ["--runs", f"{folder}/runs", "--port", "7960"]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=folder)
        try:
            frames = record(address_of(server))
        finally:
            server.terminate()
            server.communicate()
    first, *others = [shrink(frame) for frame in frames]
    shown = [SHOWN_MS] * len(others) + [LAST_SHOWN_MS]
    first.save(
        SCREENSHOTS / "run.webp", save_all=True, append_images=others, duration=shown, loop=0,
        quality=72, method=6,
    )  # fmt: skip
    (SCREENSHOTS / "live.png").write_bytes(frames[-1])


def address_of(server: "subprocess.Popen[str]") -> str:
    """Wait until the page answers and return its address."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"Timbre runs at (http://\S+)", line):
            return found[1]
    raise SystemExit("The page did not start.")


def record(address: str) -> list[bytes]:
    """Press the demo button and return a PNG of the page every two seconds until the run ends."""
    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, locale="en-US")
        page.set_default_timeout(180_000)
        page.goto(address)
        page.click("#demo-button")
        page.wait_for_function("window.timbre && timbre.run && timbre.step > 0")
        frames = []
        while page.evaluate("timbre.state") != "finished":
            frames.append(take(page))
            page.wait_for_timeout(FRAME_MS)
        page.wait_for_timeout(FRAME_MS)
        frames.append(take(page))
        browser.close()
    return frames


def take(page: Page) -> bytes:
    """Return what a visitor sees now as a PNG."""
    page.evaluate("window.scrollTo(0, 0)")
    return page.screenshot()


def shrink(frame: bytes) -> Image.Image:
    """Return a frame at the width of the moving picture."""
    image = Image.open(io.BytesIO(frame)).convert("RGB")
    return image.resize(
        (WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS
    )


if __name__ == "__main__":
    main()

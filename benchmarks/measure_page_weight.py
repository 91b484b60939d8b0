"""Measure how heavy the page is: python -m benchmarks.measure_page_weight --label after.

Counted on the built page: components, handlers, the inputs of each, and the bytes of the first
configuration that a browser loads. Measured in Chromium, as medians over several loads in fresh
profiles: milliseconds to the first paint and to a form that can be typed into, and the bytes that
one edited field sends to the server. Needs the packages of tests/requirements.txt and Chromium.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from assets.make_base import describe_machine

PROJECT = Path(__file__).resolve().parent.parent
MANY = 80
"""Inputs of a handler that count as many: about those of the widgets that people see first."""
_PATIENCE_MS = 120_000
_STEPS = "#training-steps input, #training-steps textarea"
_USABLE = """() => {
    const field = document.querySelector("#training-steps :is(input, textarea)");
    const button = document.querySelector("#start-training");
    return field && field.offsetParent && button ? performance.now() : null;
}"""
_PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


def main() -> None:
    """Measure and add the figures to the report under their label."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--label", required=True, help="names these figures, such as before")
    parser.add_argument("--loads", type=int, default=7, help="of the page in Chromium")
    parser.add_argument(
        "--out", type=Path, default=PROJECT / "benchmarks" / "results" / "page_weight.json"
    )
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, _server(Path(work) / "runs") as url:
        with urllib.request.urlopen(url + "/config") as answer:
            figures = count(answer.read())
        figures |= watch(url, chosen.loads)
    report: dict[str, Any] = {}
    if chosen.out.is_file():
        report = json.loads(chosen.out.read_text(encoding="utf-8"))
    report |= {
        "command": "python -m benchmarks.measure_page_weight --label LABEL",
        "what": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
        "machine": describe_machine(),
        chosen.label: figures,
    }
    chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


@contextmanager
def _server(runs: Path) -> Iterator[str]:
    """Start the page over a folder of runs, and end it."""
    runs.mkdir(parents=True)
    command = [sys.executable, str(PROJECT / "app.py"), "--runs", str(runs), "--no-browser"]
    process = subprocess.Popen(
        [*command, "--no-token"], stdout=subprocess.PIPE, text=True, cwd=runs.parent
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "http://" in line:
                yield "http://" + line.split("http://")[1].split()[0].rstrip("/")
                break
    finally:
        process.terminate()
        process.wait(30)


def count(config: bytes) -> dict[str, Any]:
    """Return how large the page is that a configuration describes."""
    page = json.loads(config)
    inputs = [len(handler["inputs"]) for handler in page["dependencies"]]
    return {
        "components": len(page["components"]),
        "config_bytes": len(config),
        "handlers": len(inputs),
        "most_inputs": max(inputs),
        f"handlers_over_{MANY}_inputs": sum(number > MANY for number in inputs),
    }


def watch(url: str, loads: int) -> dict[str, Any]:
    """Return what Chromium needs to show the page, and what one edit sends."""
    from playwright.sync_api import sync_playwright

    painted, usable, sent = [], [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(loads):
            context = browser.new_context(viewport={"width": 1280, "height": 900})
            context.set_default_timeout(_PATIENCE_MS)
            page = context.new_page()
            page.goto(url + "/?tab=train")
            usable.append(page.wait_for_function(_USABLE).json_value())
            painted.append(page.wait_for_function(_PAINTED).json_value())
            sent.append(_bytes_of_an_edit(page))
            context.close()
        browser.close()
    return {
        "loads": loads,
        "first_paint_ms": _spread(painted),
        "usable_form_ms": _spread(usable),
        "bytes_an_edit": statistics.median(sent),
    }


def _bytes_of_an_edit(page: Any) -> int:
    """Return the bytes that go to the server when one field is edited, until its plan is shown."""
    page.wait_for_selector("#start-training >> text=Start: ")
    # The estimate starts with the plan and takes a process of its own; the edit waits for its end.
    page.wait_for_selector("#estimate >> text=The largest step takes about")
    posted: list[int] = []
    page.on(
        "request",
        lambda request: (
            posted.append(len(request.post_data_buffer or b""))
            if "queue/join" in request.url
            else None
        ),
    )
    page.fill(_STEPS, "240")
    page.wait_for_selector("#start-training >> text=Start: 240 steps")
    return sum(posted)


def _spread(values: list[float]) -> dict[str, float]:
    """Return the median and the range of measured times."""
    return {
        "median": round(statistics.median(values)),
        "min": round(min(values)),
        "max": round(max(values)),
    }


if __name__ == "__main__":
    main()

"""Bundle our JavaScript into one file and connect its functions to elements of the page.

Gradio inserts the HTML head while it renders, so the script may load before or after an element.
Calls are therefore put in a queue that the script works off when it has loaded.
"""

import os
from pathlib import Path

STATIC = Path(__file__).resolve().parent / "static"
"""Scripts, styles and translations that the page loads."""

_PARTS = (
    "base/dom.js",
    "base/translations.js",
    "base/access.js",
    "base/login.js",
    "charts/chart.js",
    "charts/series.js",
    "base/poll.js",
    "tabs/status_bar.js",
    "charts/breakdown.js",
    "charts/overlay.js",
    "charts/history.js",
    "tabs/tiles.js",
    "tabs/live.js",
    "tabs/trash.js",
    "charts/compare.js",
    "tabs/runs.js",
    "tabs/race.js",
    "tabs/trials.js",
    "tabs/speech.js",
    "tabs/data.js",
    "tabs/segmentation.js",
    "tabs/fields.js",
    "tabs/form_fill.js",
    "charts/spectrogram.js",
    "tabs/listening_test.js",
    "base/mount.js",
)


def bundle() -> str:
    """Return all scripts in loading order, preceded by the polling interval."""
    poll_ms = int(os.environ.get("TIMBRE_POLL_MS", "1000"))
    parts = [(STATIC / "js" / name).read_text(encoding="utf-8") for name in _PARTS]
    return "\n".join([f"window.timbre = {{ pollMs: {poll_ms} }};", *parts])


def mount(function: str) -> str:
    """Return a `js_on_load` that lets a function of our script fill the element."""
    return queued(function, "element", "trigger")


def queued(function: str, *given: str) -> str:
    """Return a line of JavaScript that calls a function of our script once it has loaded."""
    call = ", ".join([f'"{function}"', *given])
    return f"(window.timbreQueue = window.timbreQueue || []).push([{call}]);"

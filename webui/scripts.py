"""Bundle our JavaScript into one file and connect its functions to elements of the page.

Gradio inserts the HTML head while it renders, so the script may load before or after an element.
Calls are therefore put in a queue that the script works off when it has loaded.
"""

import os

from webui.studio import ASSETS

_PARTS = (
    "dom.js",
    "words.js",
    "access.js",
    "login.js",
    "chart.js",
    "series.js",
    "poll.js",
    "strip.js",
    "breakdown.js",
    "overlay.js",
    "history.js",
    "live.js",
    "trash.js",
    "compare.js",
    "runs.js",
    "race.js",
    "trials.js",
    "speech.js",
    "data.js",
    "cuts.js",
    "fields.js",
    "form_fill.js",
    "spectrogram.js",
    "court.js",
    "mount.js",
)


def bundle() -> str:
    """Return all scripts in loading order, preceded by the polling interval."""
    poll_ms = int(os.environ.get("TIMBRE_POLL_MS", "1000"))
    parts = [(ASSETS / "page" / name).read_text(encoding="utf-8") for name in _PARTS]
    return "\n".join([f"window.timbre = {{ pollMs: {poll_ms} }};", *parts])


def mount(function: str) -> str:
    """Return a `js_on_load` that lets a function of our script fill the element."""
    return queued(function, "element", "trigger")


def queued(function: str, *given: str) -> str:
    """Return a line of JavaScript that calls a function of our script once it has loaded."""
    call = ", ".join([f'"{function}"', *given])
    return f"(window.timbreQueue = window.timbreQueue || []).push([{call}]);"

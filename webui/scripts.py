"""Scripts: our JavaScript as one file, and the line that hands it an element to fill.

Gradio adds the page's head while it draws, so the script may arrive before or after an element:
elements wait in a queue until it is there.
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
    """Return all scripts in their order, the interval of the poller in front."""
    poll_ms = int(os.environ.get("TIMBRE_POLL_MS", "1000"))
    parts = [(ASSETS / "page" / name).read_text(encoding="utf-8") for name in _PARTS]
    return "\n".join([f"window.timbre = {{ pollMs: {poll_ms} }};", *parts])


def mount(function: str) -> str:
    """Return the `js_on_load` that lets a function of our script fill an element."""
    return queued(function, "element", "trigger")


def queued(function: str, *given: str) -> str:
    """Return the line that calls a function of our script once the script is there."""
    call = ", ".join([f'"{function}"', *given])
    return f"(window.timbreQueue = window.timbreQueue || []).push([{call}]);"

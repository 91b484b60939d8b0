"""The settings of Gradio's events that the page uses again and again."""

from typing import Literal, TypedDict, Unpack

READ_FORM = "(...given) => timbre.withForm(given)"
"""The script of a handler that reads the form."""


class EventOptions(TypedDict, total=False):
    """Keyword arguments of a listener such as `button.click`."""

    api_visibility: Literal["public", "private", "undocumented"]
    concurrency_limit: int | None | Literal["default"]
    concurrency_id: str
    show_progress: Literal["full", "minimal", "hidden"]
    trigger_mode: Literal["once", "multiple", "always_last"]
    js: str


PRIVATE: EventOptions = {"api_visibility": "private", "concurrency_limit": None}
"""An event of the page alone, for any number of people at once."""


def private(**further: Unpack[EventOptions]) -> EventOptions:
    """Return the settings of an event of the page alone, for any number of people at once."""
    return {**PRIVATE, **further}


def quiet(**further: Unpack[EventOptions]) -> EventOptions:
    """Return the settings of such an event without a sign of waiting."""
    return {**PRIVATE, "show_progress": "hidden", **further}


QUIET = quiet()
READING = private(js=READ_FORM)
"""An event whose handler reads the form."""
PRESS = quiet(trigger_mode="multiple")
"""A press of a button: each counts, even if the previous one has not been answered yet."""
SPEAKING = quiet(concurrency_limit=1, concurrency_id="speaking")
"""An event that loads a voice; one at a time, because each takes much memory."""

"""Actions: what the buttons of the live panel, the run table and the recent runs do."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from trainer.errors import RunError, TimbreError
from trainer.runs import REQUESTS
from webui.studio import Studio

_DONE = {
    "stop": "Stopping after the current step; a checkpoint is saved first.",
    "save": "A checkpoint will be saved after the current step.",
    "preview": "A preview will be spoken after the current step.",
}


def perform(studio: Studio, action: str, name: str) -> str:
    """Carry out a request or a resume and say so.

    Raises:
        TimbreError: the run is unknown, not in training, or owned by another process.
    """
    if action in REQUESTS:
        if not studio.library.status(name).is_active:
            raise RunError(f"The run {name} is not being trained.")
        studio.library.get(name).request(action)
        return _DONE[action]
    studio.library.resume(name)
    return f"{name} goes on from its last checkpoint."


def answer_buttons(studio: Studio) -> Callable[[gr.EventData], None]:
    """Return the handler of a panel's buttons; an unusable request becomes a toast."""

    def act(event: gr.EventData) -> None:
        action, name = event_detail(event, "action"), event_detail(event, "run")
        if action not in (*REQUESTS, "resume"):
            return
        with toasts():
            gr.Info(perform(studio, action, name), duration=4)

    return act


class toasts:  # noqa: N801 - reads as a verb in `with toasts():`
    """Turn an error for people into a toast on the page."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, TimbreError):
            raise gr.Error(str(error), print_exception=False, title="This cannot be done") from None


def event_detail(event: gr.EventData, name: str) -> str:
    """Return one word of what the panel's script sent along with its click."""
    return str((event._data or {}).get(name, ""))

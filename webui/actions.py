"""Actions: what the buttons of the live panel, the run table and the recent runs do."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from trainer.errors import RunError, TimbreError
from webui.rescue import rescue
from webui.studio import Studio

_REQUESTS = {
    "stop": "Stopping after the current step; a checkpoint is saved first.",
    "save": "A checkpoint will be saved after the current step.",
    "preview": "A preview will be spoken after the current step.",
}


def perform(studio: Studio, action: str, name: str, count: str = "") -> str:
    """Carry out what a button asks of a run, of the queue or of the trash, and say so.

    `name` is a run's name, or the key of something in the trash.

    Raises:
        TimbreError: the run is unknown or in no state for that, or the action is.
    """
    if action in _REQUESTS:
        if not studio.library.status(name).is_active:
            raise RunError(f"The run {name} is not being trained.")
        studio.library.get(name).request(action)
        return _REQUESTS[action]
    deeds = _run_deeds(studio, name, count) | _list_deeds(studio, name)
    if action not in deeds:
        raise RunError(f"'{action}' is nothing that this page can do.")
    return deeds[action]()


def _run_deeds(studio: Studio, name: str, count: str) -> dict[str, Callable[[], str]]:
    library = studio.library

    def resume() -> str:
        library.resume(name)
        return f"{name} goes on from its last checkpoint."

    def add_steps() -> str:
        if not (count.isascii() and count.isdigit() and len(count) < 10):
            raise RunError(f"'{count}' is no number of steps. Give a whole number from 1 on.")
        return f"{name} goes on to step {library.add_steps(name, int(count))}."

    def queue() -> str:
        library.requeue(name)
        return f"{name} waits for its turn to go on."

    def discard() -> str:
        if library.discard(name):
            return f"{name} is in the trash, at the end of the Runs tab."
        return f"{name} stops after the current step, then it is moved to the trash."

    def start_again() -> str:
        wanted, trains = rescue(studio, name)
        if trains:
            return f"{wanted} trains now, with AdamW from the last good checkpoint."
        return f"{name} has not stopped yet; {wanted} waits for that in the queue."

    def kill() -> str:
        library.get(name).kill()
        return f"{name} is ended at once. Resume goes on from its last checkpoint."

    deeds = {"resume": resume, "more": add_steps, "queue": queue, "discard": discard}
    return deeds | {"rescue": start_again, "kill": kill}


def _list_deeds(studio: Studio, name: str) -> dict[str, Callable[[], str]]:
    library, queue = studio.library, studio.library.queue

    def said(deed: Callable[[], Any], words: str) -> Callable[[], str]:
        def do() -> str:
            deed()
            return words

        return do

    def give_back() -> str:
        return f"{library.give_back(name).name} is back among the runs."

    return {
        "earlier": said(lambda: queue.move(name, -1), f"{name} comes earlier."),
        "later": said(lambda: queue.move(name, 1), f"{name} comes later."),
        "unqueue": said(
            lambda: queue.remove(name), f"{name} no longer waits. It stays among the runs."
        ),
        "pause": said(lambda: queue.pause(True), "The queue starts nothing until it goes on."),
        "continue": said(lambda: queue.pause(False), "The queue goes on."),
        "give_back": give_back,
        "delete": said(lambda: library.trash.delete(name), "It is deleted for good."),
    }


def answer_buttons(studio: Studio) -> Callable[[gr.EventData], None]:
    """Return the handler of a panel's buttons; an unusable request becomes a toast."""

    def act(event: gr.EventData) -> None:
        name, count = event_detail(event, "run"), event_detail(event, "count")
        with toasts():
            said = perform(studio, event_detail(event, "action"), name, count)
        gr.Info(as_shown(said), duration=4)

    return act


class toasts:  # noqa: N801 - reads as a verb in `with toasts():`
    """Turn an error for people into a toast on the page."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, TimbreError):
            words = as_shown(str(error))
            raise gr.Error(words, print_exception=False, title="This cannot be done") from None


def as_shown(words: str) -> str:
    """Return words for a toast or Markdown, which take markup, so that they are shown as they are.

    Names and texts of strangers stand in many sentences.
    """
    return words.replace("&", "&amp;").replace("<", "&lt;")


def event_detail(event: gr.EventData, name: str) -> str:
    """Return one word of what the panel's script sent along with its click."""
    data = event._data
    return str(data.get(name, "")) if isinstance(data, dict) else ""

"""Perform the actions behind the buttons of the live panel, the run table and recent runs."""

from collections.abc import Callable

import gradio as gr

from trainer.core.errors import RunError, TimbreError
from webui.restart_with_adamw import restart_with_adamw
from webui.studio import Studio

_REQUESTS = {
    "stop": "Stopping after the current step; a checkpoint is saved first.",
    "save": "A checkpoint will be saved after the current step.",
    "preview": "A preview will be generated after the current step.",
}


def perform(studio: Studio, action: str, name: str, count: str = "") -> str:
    """Perform a button's action on a run, the queue or the trash, and return a message.

    `name` is the name of a run, or the key of an entry in the trash.

    Raises:
        TimbreError: the run or the action is unknown, or the run's state does not allow it.
    """
    if action in _REQUESTS:
        if not studio.library.status(name).is_active:
            raise RunError(f"{name} is not training.")
        studio.library.get(name).request(action)
        return _REQUESTS[action]
    actions = _run_actions(studio, name, count) | _list_actions(studio, name)
    if action not in actions:
        raise RunError(f"Unknown action '{action}'.")
    return actions[action]()


def _run_actions(studio: Studio, name: str, count: str) -> dict[str, Callable[[], str]]:
    library = studio.library

    def resume() -> str:
        library.resume(name)
        return f"{name} resumes from its last checkpoint."

    def add_steps() -> str:
        if not (count.isascii() and count.isdigit() and len(count) < 10):
            text = f"'{count}' is not a valid step count; enter an integer of at least 1."
            raise RunError(text)
        return f"{name} now trains to step {library.add_steps(name, int(count))}."

    def queue() -> str:
        library.requeue(name)
        return f"{name} was added to the queue."

    def discard() -> str:
        if library.discard(name):
            return f"{name} was moved to the trash at the bottom of the Runs tab."
        return f"{name} will stop after the current step and move to the trash."

    def start_again() -> str:
        wanted, trains = restart_with_adamw(studio, name)
        if trains:
            return f"{wanted} is now training with AdamW from the last good checkpoint."
        return f"{name} hasn't stopped yet; {wanted} is queued and starts when it does."

    def kill() -> str:
        library.get(name).kill()
        return f"{name} was stopped immediately. Resume continues from its last checkpoint."

    actions = {"resume": resume, "more": add_steps, "queue": queue, "discard": discard}
    return actions | {"rescue": start_again, "kill": kill}


def _list_actions(studio: Studio, name: str) -> dict[str, Callable[[], str]]:
    library, queue = studio.library, studio.library.queue

    def said(fn: Callable[[], object], words: str) -> Callable[[], str]:
        def do() -> str:
            fn()
            return words

        return do

    def give_back() -> str:
        return f"{library.restore(name).name} was restored."

    return {
        "earlier": said(lambda: queue.move(name, -1), f"{name} moved up in the queue."),
        "later": said(lambda: queue.move(name, 1), f"{name} moved down in the queue."),
        "unqueue": said(
            lambda: queue.remove(name), f"{name} left the queue; the run itself was kept."
        ),
        "pause": said(lambda: queue.pause(True), "The queue is paused; no new run starts."),
        "continue": said(lambda: queue.pause(False), "The queue has resumed."),
        "give_back": give_back,
        "delete": said(lambda: library.trash.delete(name), "Deleted permanently."),
    }


def answer_buttons(studio: Studio) -> Callable[[gr.EventData], None]:
    """Return the click handler of a panel's buttons; errors become toasts."""

    def act(event: gr.EventData) -> None:
        name, count = event_detail(event, "run"), event_detail(event, "count")
        with toasts():
            said = perform(studio, event_detail(event, "action"), name, count)
        gr.Info(as_shown(said), duration=4)

    return act


class toasts:  # noqa: N801 - reads as a verb in `with toasts():`
    """Show a `TimbreError` raised inside the block as a toast on the page."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TimbreError):
            words = as_shown(str(error))
            raise gr.Error(words, print_exception=False, title="Action failed") from None


def as_shown(words: str) -> str:
    """Escape text for a toast or Markdown.

    Both render HTML, and many messages quote names and texts from files we did not write.
    """
    return words.replace("&", "&amp;").replace("<", "&lt;")


def event_detail(event: gr.EventData, name: str) -> str:
    """Return one field of the data that the panel's script attached to the event."""
    data = event._data
    return str(data.get(name, "")) if isinstance(data, dict) else ""

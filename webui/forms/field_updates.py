"""Fill form fields with a server's answer without overwriting what was edited in the meantime."""

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}


def fill_fields(
    listen: Callable[..., Any], ask: Callable[..., dict[Any, Any]], inputs: Any,
    fields: Sequence[Component], *, name: str, further: Sequence[Any] = (), **options: Any,
) -> Any:  # fmt: skip
    """Show the values that `ask` returns in `fields`, but not over later edits.

    A server that is far away answers seconds later, and by then a person may have typed on. The
    answer therefore goes to a hidden field first, and the page's script (form_fill.js), which
    knows when each field was edited, hands it on.

    Args:
        listen: the trigger, as `button.click`.
        ask: the handler; returns the value of each field to change, and updates of `further`.
        inputs: the handler's inputs.
        fields: the components that it may fill; each has an `elem_id`.
        name: of the request, unique on the page.
        further: components that take the handler's updates as they are.

    Returns:
        The event after which the fields are filled.
    """
    answer = gr.Textbox(visible=False)
    order = [field.elem_id for field in fields]

    @functools.wraps(ask)
    def respond(*given: Any) -> dict[Any, Any]:
        updates = ask(*given)
        values = {field.elem_id: updates[field] for field in fields if field in updates}
        rest = {each: updates[each] for each in further if each in updates}
        return {answer: json.dumps({"order": order, "values": values}), **rest}

    options = _QUIET | {"concurrency_limit": None} | options
    asked = listen(respond, inputs, [answer, *further], js=asking(name), **options)
    return asked.success(
        None, answer, list(fields), js=f"(text) => timbre.takeFields({json.dumps(name)}, text)",
        **_QUIET,
    )  # fmt: skip


def asking(name: str) -> str:
    """Return the script that notes when a request is made; its inputs pass through unchanged."""
    return f"(...given) => timbre.askFields({json.dumps(name)}, given)"

"""Fill form fields with a server's answer without overwriting what was edited in the meantime."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component
from gradio.events import Dependency

from webui.forms.event_options import quiet

UNREAD = "@form"
"""The input that the page's script replaces by the values of the form."""

Answer: TypeAlias = Mapping[str | Block, Any]
"""Values of fields by element id, and updates of components."""


def fill_fields(
    listen: Callable[..., Dependency], ask: Callable[..., Answer], inputs: Any, *, name: str,
    fields: Sequence[Component] = (), further: Sequence[Block] = (), then: str = "",
) -> Dependency:  # fmt: skip
    """Show the values that `ask` returns, but not over later edits.

    A server that is far away answers seconds later, and by then a person may have typed on. The
    answer therefore goes to a hidden field first, and the page's script (form_fill.js), which
    knows when each field was edited, hands it on.

    Args:
        listen: the trigger, as `button.click`.
        ask: the handler; returns values of fields by element id, and updates of components.
        inputs: the handler's inputs.
        name: of the request, unique on the page.
        fields: the components among the fields; each has an `elem_id`.
        further: components that take the handler's updates as they are.
        then: a line of JavaScript to run when the fields are filled.

    Returns:
        The event after which the fields are filled.
    """
    answer = gr.Textbox(visible=False)
    order = [field.elem_id for field in fields]

    @functools.wraps(ask)
    def respond(*given: Any) -> dict[Block, Any]:
        updates = ask(*given)
        values = {key: value for key, value in updates.items() if isinstance(key, str)}
        values |= {str(each.elem_id): updates[each] for each in fields if each in updates}
        rest = {each: updates[each] for each in further if each in updates}
        return {answer: json.dumps({"order": order, "values": values}), **rest}

    asked = listen(respond, inputs, [answer, *further], **quiet(js=asking(name)))
    take = f"timbre.takeFields({json.dumps(name)}, text)"
    taking = f"(text) => {{ const values = {take}; {then} return values; }}"
    return asked.success(None, answer, list(fields), **quiet(js=taking))


def asking(name: str) -> str:
    """Return the script that notes when a request is made; it may read the form."""
    return f"(...given) => timbre.askFields({json.dumps(name)}, given)"

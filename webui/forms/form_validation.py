"""Show validation problems next to the fields they are about, while the form is edited."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

from trainer.core.errors import ConfigError, DataError, FieldProblem, TimbreError
from trainer.core.run_config import DataConfig
from webui.actions import as_shown
from webui.scripts import mount

_PRIVATE_EVENT: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
_SHOW = "(marks) => { timbre.showFieldErrors(marks); }"
_CHECK = "() => { timbre.checkForm(); }"


class FieldValidator:
    """Receives field edits after a pause in typing, and sends the problems of fields to the page.

    Validation is slower than typing, so the page's script waits for a pause.
    """

    def __init__(self) -> None:
        self.panel = gr.HTML(js_on_load=mount("mountFieldErrors"), elem_id="form-watch")
        self.marks = gr.Textbox(visible=False)
        self.stamp = gr.Textbox("@stamp", visible=False)
        """An input that the page's script replaces by the number of the request."""

    def triggers(self, fields: Iterable[Component]) -> list[Any]:
        """Return the events of an edited field; dropdowns trigger their own."""
        lists = [field.input for field in fields if isinstance(field, gr.Dropdown)]
        return [self.panel.input, *lists]

    def show_after(self, event: Any) -> None:
        """Show the marks that an event returned."""
        event.then(None, self.marks, None, js=_SHOW, **_PRIVATE_EVENT)

    def check_after(self, event: Any) -> None:
        """Validate the whole form after an event that filled fields."""
        event.success(None, None, None, js=_CHECK, **_PRIVATE_EVENT)


def problems_of(error: TimbreError) -> list[str]:
    """Return the messages of an error; field problems keep their fields."""
    return error.problems if isinstance(error, ConfigError) else [str(error)]


def as_list(problems: Sequence[str]) -> str:
    """Return problems as a Markdown list."""
    return "\n".join(f"- {as_shown(problem)}" for problem in problems)


def field_errors(
    problems: Sequence[str], fields: Iterable[Component], *, pressed: bool = False, **further: str
) -> str:
    """Return the problems of fields as JSON for the page, in the order of the fields.

    A mark names its field and the tab and accordions around it. `pressed` means that a button was
    refused because of these problems, so the page opens the first one. `further` is added as is.
    """
    by_name = {field.elem_id: field for field in fields}
    words: dict[Component, list[str]] = {}
    for problem in problems:
        for name in problem.fields if isinstance(problem, FieldProblem) else ():
            field = by_name.get(name.replace(".", "-"))
            if field is not None:
                words.setdefault(field, []).append(str(problem))
    found = [
        {"field": field.elem_id, "words": " ".join(words[field]), **_place(field)}
        for field in sorted(words, key=lambda field: field._id)
    ]
    return json.dumps({"marks": found, "pressed": pressed} | further)


def _place(field: Component) -> dict[str, Any]:
    """Return the tab and the accordions that contain a field, outermost first."""
    folds: list[str | None] = []
    parent = field.parent
    while parent is not None and not isinstance(parent, gr.Tab):
        if isinstance(parent, gr.Accordion):
            folds.insert(0, parent.elem_id)
        parent = parent.parent
    return {"tab": parent.id if parent is not None else "", "folds": folds}


def about_lists(error: TimbreError, data: DataConfig) -> list[str]:
    """Return the problems of an error; an unreadable list is linked to the field that names it."""
    if not isinstance(error, DataError):
        return problems_of(error)
    is_eval = bool(data.eval_csv) and data.eval_csv in str(error)
    name = "eval_csv" if is_eval else "train_data" if data.train_data else "train_csv"
    return [FieldProblem(str(error), f"data.{name}")]

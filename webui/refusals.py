"""Refusals: which problem stands beside which field, told to the page as fields are edited."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import gradio as gr
from gradio.components import Component

from trainer.config import DataConfig
from trainer.errors import ConfigError, DataError, FieldProblem, TimbreError
from webui.actions import as_shown
from webui.scripts import mount

_QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
_SHOW = "(marks) => { timbre.markFields(marks); }"
_CHECK = "() => { timbre.checkForm(); }"


class FieldWatch:
    """Hears of edited fields once a person pauses, and carries the problems of fields to the page.

    Fields are typed into faster than they can be checked; the page's script waits for a pause.
    """

    def __init__(self) -> None:
        self.panel = gr.HTML(js_on_load=mount("mountWatch"), elem_id="form-watch")
        self.marks = gr.Textbox(visible=False)
        self.stamp = gr.Textbox("@stamp", visible=False)
        """An input that the page's script replaces by the number of the request."""

    def triggers(self, fields: Iterable[Component]) -> list[Any]:
        """Return what tells that one of the fields changed; lists of choices tell it themselves."""
        lists = [field.input for field in fields if isinstance(field, gr.Dropdown)]
        return [self.panel.input, *lists]

    def show_after(self, event: Any) -> None:
        """Show the marks that an event brought."""
        event.then(None, self.marks, None, js=_SHOW, **_QUIET)

    def check_after(self, event: Any) -> None:
        """Let the whole form be checked after an event that filled fields."""
        event.success(None, None, None, js=_CHECK, **_QUIET)


def problems_of(error: TimbreError) -> list[str]:
    """Return the sentences of an error, those of fields with their fields."""
    return error.problems if isinstance(error, ConfigError) else [str(error)]


def as_list(problems: Sequence[str]) -> str:
    """Return problems as a Markdown list."""
    return "\n".join(f"- {as_shown(problem)}" for problem in problems)


def marks(
    problems: Sequence[str], fields: Iterable[Component], *, pressed: bool = False, **further: str
) -> str:
    """Return the problems of fields as JSON for the page, in the order the fields stand in.

    A mark names its field, the tab and the folds the field lies in. `pressed`: somebody asked for
    something that these problems forbid, so the first of them is opened. `further` goes along.
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
    """Return the tab that a field is on, and the accordions it lies in, outermost first."""
    folds: list[str | None] = []
    parent = field.parent
    while parent is not None and not isinstance(parent, gr.Tab):
        if isinstance(parent, gr.Accordion):
            folds.insert(0, parent.elem_id)
        parent = parent.parent
    return {"tab": parent.id if parent is not None else "", "folds": folds}


def about_lists(error: TimbreError, data: DataConfig) -> list[str]:
    """Return the problems of an error, those of unreadable lists with the field that names them."""
    if not isinstance(error, DataError):
        return problems_of(error)
    is_eval = bool(data.eval_csv) and data.eval_csv in str(error)
    name = "eval_csv" if is_eval else "train_data" if data.train_data else "train_csv"
    return [FieldProblem(str(error), f"data.{name}")]

"""Show validation problems next to the fields they are about, while the form is edited."""

import json
from collections.abc import Mapping, Sequence

import gradio as gr
from gradio.events import Dependency

from trainer.core.errors import ConfigError, DataError, FieldProblem, TimbreError
from trainer.core.run_config import DataConfig
from webui.actions import as_shown
from webui.forms.event_options import quiet
from webui.forms.field_updates import UNREAD
from webui.scripts import mount

_SHOW = "(marks) => { timbre.showFieldErrors(marks); }"
_CHECK = "() => { timbre.checkForm(); }"


class FieldValidator:
    """Holds the form's values, receives edits after a pause in typing, and shows problems.

    Validation is slower than typing, so the page's script waits for a pause and then triggers
    `panel.input`.
    """

    def __init__(self) -> None:
        self.panel = gr.HTML(js_on_load=mount("mountFieldErrors"), elem_id="form-watch")
        self.marks = gr.Textbox(visible=False)
        self.stamp = gr.Textbox("@stamp", visible=False)
        """An input that the page's script replaces by the number of the request."""
        self.form = gr.Textbox(UNREAD, visible=False)
        """An input that the page's script replaces by the values of the form."""

    def show_after(self, event: Dependency) -> None:
        """Show the marks that an event returned."""
        event.then(None, self.marks, None, **quiet(js=_SHOW))

    def check_after(self, event: Dependency) -> None:
        """Validate the whole form after an event that filled fields."""
        event.success(None, None, None, **quiet(js=_CHECK))


def problems_of(error: TimbreError) -> list[str]:
    """Return the messages of an error; field problems keep their fields."""
    return error.problems if isinstance(error, ConfigError) else [str(error)]


def as_list(problems: Sequence[str]) -> str:
    """Return problems as a Markdown list."""
    return "\n".join(f"- {as_shown(problem)}" for problem in problems)


def field_errors(
    problems: Sequence[str], fields: Mapping[str, str], *, pressed: bool = False, **further: str
) -> str:
    """Return the problems of fields as JSON for the page, in the order of the fields.

    Args:
        problems: sentences; those about fields name them.
        fields: the tab of each field, by element id.
        pressed: a button was refused because of these problems, so the page opens the first one.
        further: facts that are added as they are.
    """
    words: dict[str, list[str]] = {}
    for problem in problems:
        for name in problem.fields if isinstance(problem, FieldProblem) else ():
            words.setdefault(name.replace(".", "-"), []).append(str(problem))
    marks = [
        {"field": field, "tab": tab, "words": " ".join(words[field])}
        for field, tab in fields.items()
        if field in words
    ]
    return json.dumps({"marks": marks, "pressed": pressed} | further)


def about_lists(error: TimbreError, data: DataConfig) -> list[str]:
    """Return the problems of an error; an unreadable list is linked to the field that names it."""
    if not isinstance(error, DataError):
        return problems_of(error)
    is_eval = bool(data.eval_csv) and data.eval_csv in str(error)
    name = "eval_csv" if is_eval else "train_data" if data.train_data else "train_csv"
    return [FieldProblem(str(error), f"data.{name}")]

"""Build widgets from an options dataclass and read them back; types map to widgets only here."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from gradio.components import Component

from trainer.core.errors import ConfigError, FieldProblem, within
from trainer.core.options import OptionInfo, describe, parse_value

Values = Mapping[Component, Any]
"""What Gradio passes to a handler whose inputs are a set: the value of each widget."""


class OptionsForm:
    """The widgets of one options dataclass, laid out where the form is created."""

    def __init__(self, options_class: type, name: str, *, leave_out: tuple[str, ...] = ()) -> None:
        self.options_class = options_class
        self.name = name
        infos = [
            info
            for info in describe(options_class)
            if info.name not in leave_out and not info.retired
        ]
        self.infos = {info.name: info for info in infos}
        self.widgets: dict[str, Component] = {}
        with gr.Row(elem_classes="fields"):
            self._add([info for info in infos if not info.advanced])
        advanced = [info for info in infos if info.advanced]
        if advanced:
            fold = gr.Accordion("More", open=False, elem_id=f"{name}-more")
            with fold, gr.Row(elem_classes="fields"):
                self._add(advanced)

    def _add(self, infos: list[OptionInfo]) -> None:
        for info in infos:
            self.widgets[info.name] = build_widget(info, f"{self.name}-{info.name}")

    def read(self, values: Values) -> dict[str, Any]:
        """Return the options as validated plain values.

        Raises:
            ConfigError: lists every field with an invalid value.
        """
        parsed, problems = {}, []
        for name, widget in self.widgets.items():
            try:
                parsed[name] = parse_value(self.infos[name], values[widget])
            except ConfigError as error:
                problems += within(self.name, error.problems)
        if problems:
            raise ConfigError(problems)
        return parsed

    def read_changes(self, values: Values) -> dict[str, Any]:
        """Return the options that differ from their defaults."""
        read = self.read(values)
        return {name: value for name, value in read.items() if value != self.infos[name].default}

    def fill(self, options: Mapping[str, Any]) -> dict[Component, Any]:
        """Return the updates that show these options, with defaults for all others."""
        updates = {}
        for name, widget in self.widgets.items():
            value = options.get(name, self.infos[name].default)
            updates[widget] = as_text(value) if isinstance(widget, gr.Textbox) else value
        return updates


def build_widget(info: OptionInfo, elem_id: str) -> Component:
    """Return the widget for one documented field."""
    about: dict[str, Any] = {
        "label": info.label,
        "info": info.help,
        "value": info.default,
        "interactive": True,
        "elem_id": elem_id,
        "min_width": 220,
    }
    if info.kind is bool:
        return gr.Checkbox(**about)
    if info.choices:
        return gr.Dropdown(list(info.choices), **about)
    if info.kind is int and not info.optional:
        return gr.Number(**about, precision=0)
    # A text field shows 1e-08 exactly and can be empty; Gradio's number field shows empty as 0.
    about["value"] = as_text(info.default)
    return gr.Textbox(**about, max_lines=1, placeholder="auto" if info.optional else None)


def as_text(value: Any) -> str:
    """Format a value for a text field; `parse_value` parses it back to an equal value."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    return "" if value is None else str(value)


class ChoiceForm:
    """A dropdown of registry entries that shows the option fields of the chosen entry."""

    def __init__(self, entries: Mapping[str, Any], name: str, label: str, default: str) -> None:
        self.name = name
        self.entries = entries
        self.forms: dict[str, OptionsForm] = {}
        self._groups: dict[str, gr.Group] = {}
        choices = [(entry.label, key) for key, entry in entries.items()]
        chosen = default if default in entries else next(iter(entries), None)
        self.choice = gr.Dropdown(
            choices, value=chosen, label=label, interactive=True, elem_id=f"{name}-choice"
        )
        summary = _describe(entries[chosen]) if chosen else ""
        self.summary = gr.Markdown(summary, elem_classes="summary")
        for key, entry in entries.items():
            with gr.Group(visible=key == chosen) as group:
                self.forms[key] = OptionsForm(entry.options, f"{name}-{key}")
            self._groups[key] = group
        self.choice.change(
            self._show,
            self.choice,
            [self.summary, *self._groups.values()],
            show_progress="hidden",
            api_visibility="private",
        )

    @property
    def components(self) -> set[Any]:
        """The dropdown and every option field."""
        fields = {widget for form in self.forms.values() for widget in form.widgets.values()}
        return {self.choice} | fields

    def read(self, values: Values) -> dict[str, Any]:
        """Return the choice as JSON values: its name and its non-default options."""
        name = values[self.choice]
        if name not in self.forms:
            text = f"No {self.name} is chosen. Choose one of {', '.join(self.forms)}."
            raise ConfigError(FieldProblem(text, f"{self.name}.choice"))
        return {"name": name, "options": self.forms[name].read_changes(values)}

    def fill(self, choice: Mapping[str, Any]) -> dict[Component, Any]:
        """Return the updates that show a choice; the fields of other entries are not changed."""
        return {self.choice: choice["name"]} | self.forms[choice["name"]].fill(choice["options"])

    def _show(self, chosen: str | None) -> list[Any]:
        visible = [gr.Group(visible=key == chosen) for key in self._groups]
        entry = self.entries.get(chosen) if chosen else None
        return [_describe(entry) if entry else "", *visible]


def _describe(entry: Any) -> str:
    """Return the text under a choice: summary, licence and advice."""
    licence, advice = getattr(entry, "licence", ""), getattr(entry, "advice", "")
    parts = (entry.summary, f"Licence: {licence}." if licence else "", advice)
    return " ".join(part for part in parts if part)

"""What each preset changes in the form, as values that the page applies without the server."""

import json
from collections.abc import Mapping
from html import escape
from typing import Any

import gradio as gr
from gradio.components import Component

from trainer.config.presets import PRESETS
from trainer.core.run_config import RunConfig
from webui.forms.form import ChoiceForm
from webui.forms.run_form import RunForm

DEFAULTS = "defaults"
"""The entry of the preset list that resets everything but the family and its base."""


class PresetValues:
    """The values of all presets for one form, and the components that they touch."""

    def __init__(self, form: RunForm) -> None:
        self._form = form
        self.plans = {name: _plan(form, preset.values) for name, preset in PRESETS.items()}
        self.plans[DEFAULTS] = [{"set": _defaults(form)}]
        by_id = {field.elem_id: field for field in form.components}
        touched = {field for plan in self.plans.values() for part in plan for field in part["set"]}
        self.filled: list[Component] = [by_id[field] for field in sorted(touched | {"base"})]
        """What a preset may change, the base among them: it follows the family."""
        forms = (form.family, form.optimizer, form.schedule)
        boxes = list(form.optimizations.boxes.values())
        self.switches: list[Component] = [*(each.choice for each in forms), *boxes, form.base]
        """What decides whether the options of an entry start at their defaults."""

    def as_html(self, preset: str) -> str:
        """Return the values as a data block for the page's script; `preset` is shown first."""
        facts = {
            "plans": self.plans,
            "order": [field.elem_id for field in self.filled],
            "switches": [field.elem_id for field in self.switches],
            "bundled": self._form.bundled,
            "bundledFamily": RunConfig().family.name,
            "shown": {"preset": preset, "family-choice": RunConfig().family.name},
        }
        return f'<pre hidden translate="no" id="preset-values">{escape(json.dumps(facts))}</pre>'


def _plan(form: RunForm, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a preset in their order.

    Each part sets the fields of `set`, unless the fields of `unless` all show what it names there.
    """
    training = {"steps": None, "epochs": None} | values.get("training", {})
    filled = _by_id(form.main.fill(training) | form.more.fill(training))
    parts: list[dict[str, Any]] = [
        {"set": {f"training-{name}": filled[f"training-{name}"] for name in training}}
    ]
    for choice in (form.family, form.optimizer, form.schedule):
        if choice.name in values:
            parts += _choice_parts(choice, values[choice.name])
    for name, options in values.get("optimizations", {}).items():
        if name not in form.optimizations.forms:  # cannot work on this machine
            continue
        box = form.optimizations.boxes[name].elem_id
        fields = form.optimizations.forms[name]
        parts.append({"unless": {box: True}, "set": _by_id(fields.fill({}))})
        parts.append({"set": {box: True} | _named(f"optimization-{name}", fields, options)})
    return parts


def _choice_parts(choice: ChoiceForm, wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    name, fields = wanted["name"], choice.forms[wanted["name"]]
    named = _named(f"{choice.name}-{name}", fields, wanted["options"])
    return [
        {"unless": {choice.choice.elem_id: name}, "set": _by_id(fields.fill({}))},
        {"set": {choice.choice.elem_id: name} | named},
    ]


def _named(part: str, fields: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the fields of the named options show, and of no other."""
    filled = _by_id(fields.fill(options))
    return {f"{part}-{name}": filled[f"{part}-{name}"] for name in options}


def _defaults(form: RunForm) -> dict[str, Any]:
    kept = form.family.components | {form.base}
    filled = form.fill(RunConfig())
    return _by_id({field: value for field, value in filled.items() if field not in kept})


def _by_id(values: Mapping[Component, Any]) -> dict[str, Any]:
    return {str(field.elem_id): value for field, value in values.items()}


def build_preset_values(form: RunForm, preset: str) -> PresetValues:
    """Put the values of the presets on the page."""
    values = PresetValues(form)
    gr.HTML(values.as_html(preset), apply_default_css=False, elem_id="presets")
    return values

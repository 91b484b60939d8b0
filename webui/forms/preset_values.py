"""What each preset changes in the form, as values that the page applies without the server."""

from collections.abc import Mapping
from typing import Any, TypedDict

import gradio as gr

from trainer.config.presets import PRESETS
from trainer.core.run_config import Choice, RunConfig
from webui.forms.form import ChoiceForm, FieldValue, Options, OptionsForm
from webui.forms.run_form import RunForm
from webui.scripts import mount

DEFAULTS = "defaults"
"""The entry of the preset list that resets everything but the family and its base."""


class Part(TypedDict, total=False):
    """One part of a preset: returns fields to their defaults, then sets fields.

    `reset` holds what their ids start with. Nothing happens if a field of `unless` holds what is
    named there.
    """

    reset: list[str]
    set: dict[str, FieldValue]
    unless: dict[str, FieldValue]


def plan_presets(form: RunForm) -> dict[str, list[Part]]:
    """Return the parts of every preset for one form, by name."""
    plans = {name: _plan(form, preset.values) for name, preset in PRESETS.items()}
    return plans | {DEFAULTS: [_defaults(form)]}


def show_preset_values(form: RunForm, preset: str) -> None:
    """Put the values of the presets on the page; `preset` is shown first."""
    facts = {
        "plans": plan_presets(form),
        "initial": form.initial(),
        "bundled": form.bundled,
        "bundledFamily": RunConfig().family.name,
        "preset": preset,
    }
    gr.HTML(js_on_load=mount("mountPresets", "props"), elem_id="presets", presets=facts)


def _plan(form: RunForm, values: Mapping[str, Any]) -> list[Part]:
    """Return the parts of a preset in their order."""
    training = {"steps": None, "epochs": None} | values.get("training", {})
    shown = form.main.fill(training) | form.more.fill(training)
    parts: list[Part] = [
        {"set": {f"training-{name}": shown[f"training-{name}"] for name in training}}
    ]
    for choice in (form.family, form.optimizer, form.schedule):
        if choice.name in values:
            parts += _choice_parts(choice, Choice(**values[choice.name]))
    for name, options in values.get("optimizations", {}).items():
        if name not in form.optimizations.forms:  # cannot work on this machine
            continue
        box, fields = form.optimizations.boxes[name], form.optimizations.forms[name]
        parts.append({"unless": {box: True}, "reset": [f"{box}-"]})
        parts.append({"set": {box: True} | _named(fields, options)})
    return parts


def _choice_parts(choice: ChoiceForm, wanted: Choice) -> list[Part]:
    fields = choice.forms[wanted.name]
    return [
        {"unless": {choice.id: wanted.name}, "reset": [f"{choice.name}-{wanted.name}-"]},
        {"set": {choice.id: wanted.name} | _named(fields, wanted.options)},
    ]


def _named(form: OptionsForm, options: Options) -> dict[str, FieldValue]:
    """Return what the fields of the named options show, and of no other."""
    shown = form.fill(options)
    return {form.fields[name].id: shown[form.fields[name].id] for name in options}


def _defaults(form: RunForm) -> Part:
    """Return the defaults of a RunConfig, which selects no optimization; family and base stay."""
    optimizer, schedule = (
        (choice.id, choice.default) for choice in (form.optimizer, form.schedule)
    )
    boxes = dict.fromkeys(form.optimizations.boxes.values(), False)
    resets = [f"{box}-" for box in boxes]
    resets += ["training-", *(id.replace("choice", f"{n}-") for id, n in (optimizer, schedule))]
    return {"reset": resets, "set": dict([optimizer, schedule]) | boxes}

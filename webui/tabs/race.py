"""Build the Race tab: compare optimizers on the clips and settings of the Train tab."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from gradio.blocks import Block
from gradio.components import Component

from trainer.core.errors import RunError, TimbreError
from trainer.core.registry import discover
from trainer.core.run_config import RunConfig
from trainer.core.specs import OptimizerSpec
from trainer.race.choices import RaceChoices, plan_race, power_of
from webui.actions import as_shown, event_detail, toasts
from webui.forms.event_options import PRESS, READ_FORM, READING, quiet
from webui.forms.form import FormValues, OptionsForm, read_values
from webui.forms.form_validation import FieldValidator, as_list, field_errors, problems_of
from webui.forms.run_form import show_options
from webui.scripts import mount
from webui.studio import Studio

NOT_SHOWN = ("optimizers", "keep_weights")
"""The options of a race that have no field: one has a list of its own, the other only a flag."""
_USUAL_MINUTES = 30.0
_USUAL = RaceChoices().optimizers.split(",")
_INFO = (
    "The first one is the baseline. You can also type one with options: adamw:lr=1e-4 fixes the "
    "rate, adamw:lr=1e-4/1e-3 tries two. An optimizer can race more than once."
)


@dataclass(frozen=True)
class RaceTab:
    """The widgets of the tab."""

    name: gr.Textbox
    optimizers: gr.Dropdown
    form: OptionsForm
    fields: gr.HTML
    promise: gr.Markdown
    problem: gr.Markdown
    start: gr.Button
    panel: gr.HTML
    watch: FieldValidator


def build(watch: FieldValidator) -> RaceTab:
    """Lay the tab out."""
    entries = discover("trainer.optimizers", OptimizerSpec)
    choices = [
        (f"{entry.label} (for research)" if entry.experimental else entry.label, name)
        for name, entry in entries.items()
    ]
    with gr.Tab("Race", id="race", elem_id="tab-race"):
        gr.Markdown(
            "Which optimizer works best for your clips? All start from the same weights and see "
            "the same batches. Each first tries a few learning rates in short runs. The clips, the "
            "model and the settings come from the Train tab."
        )
        with gr.Row():
            optimizers = gr.Dropdown(
                choices, value=_USUAL, multiselect=True, allow_custom_value=True,
                label="Optimizers", info=_INFO, elem_id="race-optimizers", scale=3,
                interactive=True,
            )  # fmt: skip
            name = gr.Textbox(
                "race", label="Race name", max_lines=1, elem_id="race-name", interactive=True
            )
        form = OptionsForm(
            RaceChoices, "race", leave_out=NOT_SHOWN,
            start={"minutes": _USUAL_MINUTES},
        )  # fmt: skip
        fields = show_options("race", form, tells=form.fields["seeds"].id)
        promise = gr.Markdown(
            power_of(_USUAL, RaceChoices().seeds), elem_id="race-promise", elem_classes="quiet"
        )
        problem = gr.Markdown(visible=False, elem_id="race-refused", elem_classes="problem")
        start = gr.Button("Start race", variant="primary", size="lg", elem_id="start-race")
        panel = gr.HTML(apply_default_css=False, js_on_load=mount("mountRace"), elem_id="race")
    return RaceTab(name, optimizers, form, fields, promise, problem, start, panel, watch)


def wire(
    tab: RaceTab, further: gr.Button, studio: Studio, tabs: gr.Tabs, asked: Sequence[Component],
    fields: Mapping[str, str], read: Callable[[str, str], RunConfig],
) -> None:  # fmt: skip
    """Connect the buttons; `further` is the button on the Train tab.

    `read` returns the RunConfig of the inputs `asked`, whose fields are in the tabs of `fields`.
    """
    known = {**fields, **dict.fromkeys(tab.form.ids, "race")}

    def press(
        text: str, dataset: str, name: str | None, optimizers: list[str] | None
    ) -> dict[Block, object]:
        try:
            config = read(text, dataset)
            choices = read_choices(tab.form, read_values(text), optimizers)
            name = studio.races.start(name or "race", plan_race(config, choices))
        except TimbreError as error:
            gr.Warning("The race can't start; see the errors on the Race tab.")
            problems = problems_of(error)
            wrong = field_errors(problems, known, pressed=True)
            shown = gr.Markdown(as_list(problems), visible=True)
            return {tab.problem: shown, tab.watch.marks: wrong, tabs: gr.Tabs(selected="race")}
        if studio.run_list.active():
            gr.Warning(
                "Another run is training, so the speeds measured in this race will be inaccurate."
            )
        gr.Info(f"Race {name} started. It keeps running if you close this page.", duration=4)
        hidden = gr.Markdown(visible=False)
        return {tab.problem: hidden, tab.watch.marks: "", tabs: gr.Tabs(selected="race")}

    def promise(text: str, optimizers: list[str] | None) -> str:
        with toasts():
            seeds = read_values(text).get(tab.form.fields["seeds"].id, RaceChoices().seeds)
        return power_of(optimizers or [], str(seeds))

    for button in (tab.start, further):
        outputs = [tab.problem, tab.watch.marks, tabs]
        given = [*asked, tab.name, tab.optimizers]
        pressed = button.click(press, given, outputs, **READING)
        pressed.then(None, None, None, js="() => timbre.showRace()", api_visibility="private")
        tab.watch.show_after(pressed)
    gr.on(
        [tab.optimizers.change, tab.fields.change], promise, [tab.watch.form, tab.optimizers],
        tab.promise, **quiet(js=READ_FORM),
    )  # fmt: skip
    tab.panel.click(_answer(studio), None, None, **PRESS)


def read_choices(
    form: OptionsForm, values: FormValues, optimizers: Sequence[str] | None
) -> RaceChoices:
    """Return the choices of the tab.

    Raises:
        ConfigError: lists every field with an invalid value.
    """
    words = [word.strip() for word in optimizers or [] if word.strip()]
    read: dict[str, Any] = form.read(values)
    return RaceChoices(**read, optimizers=",".join(words))


def _answer(studio: Studio) -> Callable[[gr.EventData], None]:
    def act(event: gr.EventData) -> None:
        action, name = event_detail(event, "action"), event_detail(event, "race")
        with toasts():
            if action == "stop":
                studio.races.stop(name)
                gr.Info(as_shown(f"{name} will save its current run and stop."), duration=4)
            elif action == "resume":
                studio.races.resume(name)
                gr.Info(as_shown(f"{name} has resumed."), duration=4)
            else:
                raise RunError(f"Unknown action '{action}'.")

    return act

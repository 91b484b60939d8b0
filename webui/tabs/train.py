"""Build the Train tab: presets, the run form, the plan of the run and the Start button."""

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path

import gradio as gr
from gradio.components import Component

from trainer.config.cli_flags import command_line
from trainer.config.presets import PRESETS, apply_preset
from trainer.config.resolve import (
    Entries,
    count_steps,
    find_base_lr,
    find_usual_lr,
    mismatches,
    missing_files,
    resolve,
)
from trainer.config.schedules import lr_curve, warnings_for
from trainer.core.errors import ConfigError, DataError, TimbreError
from trainer.core.run_config import RunConfig, read_config
from trainer.runs.run_store import free_name
from webui.actions import as_shown, event_detail, toasts
from webui.forms.event_options import READING, quiet
from webui.forms.field_updates import Answer, asking, fill_fields
from webui.forms.form import FieldValue, read_values
from webui.forms.form_validation import (
    FieldValidator,
    about_lists,
    as_list,
    field_errors,
    problems_of,
)
from webui.forms.preset_values import DEFAULTS, show_preset_values
from webui.forms.run_form import DataForm, RunForm, show_model, show_training
from webui.scripts import mount
from webui.status import duration_text
from webui.studio import Studio, demo_base, demo_data
from webui.tabs import race as race_tab
from webui.tabs import trials
from webui.tabs.start import show_run
from webui.tabs.trials import ProfilingPart
from webui.views.lr_curve import draw_lr_curve

_FAR = 10.0
"""Rates further than this factor from the usual one get a warning; chosen by hand."""

_DEMO, _OWN = "Demo voice", "My recordings (Data tab)"

_START = "Start training"
_OWN_SETTINGS = "own"
_FURTHER_PRESETS = (
    ("Defaults: 30 passes over the clips, at least 300 steps.", DEFAULTS),
    ("Custom: the current values of the fields below.", _OWN_SETTINGS),
)


@dataclass(frozen=True)
class TrainTab:
    """The widgets of the tab."""

    page: gr.Tab
    dataset: gr.Radio
    name: gr.Textbox
    preset: gr.Dropdown
    plan: gr.HTML
    form: RunForm
    batch: gr.Markdown
    curve: gr.HTML
    warnings: gr.Markdown
    problem: gr.Markdown
    start: gr.Button
    queue: gr.Button
    preview_command: gr.Button
    command: gr.Textbox
    save: gr.Button
    saved: gr.File
    load: gr.UploadButton
    trials: ProfilingPart
    race: gr.Button
    watch: FieldValidator

    @property
    def asked(self) -> list[Component]:
        """The inputs of a handler that reads the settings: the form's values and the dataset."""
        return [self.watch.form, self.dataset]


@dataclass(frozen=True)
class SettingsReader:
    """Reads the RunConfig that the page shows from the inputs `TrainTab.asked`."""

    form: RunForm
    data_form: DataForm
    studio: Studio

    @property
    def tabs(self) -> dict[str, str]:
        """The tab of each field, by element id, in the order of the page."""
        return dict.fromkeys(self.data_form.ids, "data") | dict.fromkeys(self.form.ids, "train")

    def read(self, text: str, dataset: str) -> RunConfig:
        """Return the validated RunConfig, with absolute paths.

        Raises:
            ConfigError: lists every invalid field, conflict between fields and missing file.
        """
        values = read_values(text)
        data = demo_data() if dataset == _DEMO else self.data_form.config(values)
        config = self.studio.checked(self.form.config(values, data))
        problems = [*missing_files(config), *mismatches(resolve(config))]
        if problems:
            raise ConfigError(problems)
        return config

    def read_to_start(self, text: str, dataset: str) -> RunConfig:
        """Return the RunConfig, whose lists have clips to train on.

        Raises:
            ConfigError: as `read`, or there are no such clips.
        """
        config = self.read(text, dataset)
        refuse_without_clips(self.studio, config)
        return config

    def problems(self, text: str, dataset: str) -> list[str]:
        """Return all problems of the settings, including the Data tab's even for a demo run."""
        found: list[str] = []
        try:
            self.read(text, dataset)
        except TimbreError as error:
            found += problems_of(error)
        if dataset == _DEMO:
            try:
                self.data_form.config(read_values(text))
            except ConfigError as error:
                found += error.problems
        return found


def refuse_without_clips(studio: Studio, config: RunConfig) -> None:
    """Check that the lists can be read and contain clips to train on.

    Raises:
        ConfigError: they cannot, or contain none; linked to the field that names the list.
    """
    try:
        manifest = studio.read_manifest(config.data)
    except DataError as error:
        raise ConfigError(about_lists(error, config.data)) from None
    if not manifest.train:
        first = f"The first: {manifest.problems[0]}" if manifest.problems else "The list is empty."
        count = len(manifest.problems)
        error = DataError(f"No usable clips to train on: {count} rows have problems. {first}")
        raise ConfigError(about_lists(error, config.data))


def plan(studio: Studio, config: RunConfig) -> tuple[Entries, int, int]:
    """Return the entries, the steps per epoch (0 if the data cannot be read) and per run."""
    entries = resolve(config)
    training = config.training
    batch = training.batch_size * training.accumulate * training.num_processes
    try:
        clips = len(studio.read_manifest(config.data).train)
    except (DataError, ConfigError):
        clips = 0
    per_epoch = math.ceil(clips / batch)
    return entries, per_epoch, count_steps(config, per_epoch)


def describe_start(steps: int, s_per_step: float | None) -> str:
    """Return the label of the Start button: the steps, and the time if it is known."""
    if s_per_step is None:
        return f"Start: {steps:,} steps"
    return f"Start: {steps:,} steps, about {duration_text(steps * s_per_step)}"


def describe_plan(studio: Studio, config: RunConfig) -> dict[str, str]:
    """Return the Start label, the effective batch, the learning-rate curve and warnings."""
    entries, per_epoch, total = plan(studio, config)
    training = config.training
    batch = training.batch_size * training.accumulate * training.num_processes
    words = (
        f"Effective batch **{batch}** = {training.batch_size} clips x {training.accumulate} "
        f"accumulation x {training.num_processes} GPU. "
    )
    if per_epoch:
        epochs = total / per_epoch
        words += f"{per_epoch} steps per epoch; **{total}** steps = {epochs:.1f} epochs."
    else:
        words += f"About **{total}** steps; check the data to see epochs."
    schedule, options = entries.schedule, entries.schedule_options
    rate = find_base_lr(entries)
    found = [*warnings_for(schedule, options, total), *warn_of_rate(config, entries)]
    warnings = [f"- {warning}" for warning in found]
    return {
        "start": describe_start(total, studio.s_per_step_like(config)),
        "batch": words,
        "curve": draw_lr_curve(lr_curve(schedule, options, rate, total)),
        "warnings": "\n".join(warnings),
    }


def with_preset(config: RunConfig, name: str) -> RunConfig:
    """Return a configuration with an entry of the preset list applied."""
    if name == DEFAULTS:
        return RunConfig(data=config.data, base=config.base, family=config.family)
    return apply_preset(config, name) if name in PRESETS else config


def preset_shown(form: RunForm, config: RunConfig, chosen: str) -> str:
    """Return the entry of the preset list that matches the form.

    The chosen preset is kept while the fields that it sets are unchanged. Another preset matches
    only if all other fields have their defaults.
    """
    shown = form.fill(config)
    if chosen in PRESETS and form.fill(apply_preset(config, chosen)) == shown:
        return chosen
    defaults = with_preset(config, DEFAULTS)
    for name in (DEFAULTS, *PRESETS):
        if form.fill(with_preset(defaults, name)) == shown:
            return name
    return _OWN_SETTINGS


def warn_of_rate(config: RunConfig, entries: Entries) -> list[str]:
    """Return a warning if the peak learning rate is far from the family's usual one."""
    optimizer = entries.optimizer
    usual = find_usual_lr(entries.family, optimizer)
    rate = find_base_lr(entries)
    # LoRA adapters start at zero and tolerate rates that would destroy full weights.
    is_known = usual > 0 and "lora" not in config.optimizations
    if not is_known or usual / _FAR <= rate <= usual * _FAR:
        return []
    side = "above" if rate > usual else "below"
    return [
        f"The learning rate {rate:g} is far {side} the usual rate of {optimizer.label} with "
        f"{entries.family.label}, about {usual:g}. Use 'Find learning rate' below to test it."
    ]


def build(watch: FieldValidator) -> TrainTab:
    """Lay the tab out."""
    presets = [(f"{preset.label}: {preset.summary}", name) for name, preset in PRESETS.items()]
    presets = [*_FURTHER_PRESETS, *presets]
    with gr.Tab("Train", id="train", elem_id="tab-train") as page:
        with gr.Row():
            dataset = gr.Radio(
                [_DEMO, _OWN], value=_DEMO, label="Dataset", interactive=True, elem_id="dataset"
            )
            name = gr.Textbox(
                "my-voice", label="Run name", interactive=True, max_lines=1, elem_id="run-name"
            )
        preset = gr.Dropdown(
            presets, value=DEFAULTS, label="Preset",
            info="Fills the form; you can change anything afterwards.", interactive=True,
            elem_id="preset",
        )  # fmt: skip
        form = RunForm(demo_base())
        show_preset_values(form, DEFAULTS)
        model = show_model(form)
        batch = gr.Markdown(elem_id="effective-batch")
        show_training(form)
        plan = gr.HTML(js_on_load=mount("mountPlan"), elem_id="plan-watch")
        curve = gr.HTML(elem_id="lr-curve")
        warnings = gr.Markdown(elem_id="lr-warnings")
        part = trials.build(model)
        problem = gr.Markdown(visible=False, elem_id="train-problem", elem_classes="problem")
        with gr.Row():
            start = gr.Button(_START, variant="primary", size="lg", elem_id="start-training")
            queue = gr.Button("Add to queue", size="lg", elem_id="add-to-queue")
            race = gr.Button(
                "Race optimizers with these settings", size="lg", elem_id="race-from-train"
            )
            preview_command = gr.Button("Preview command", elem_id="preview-command")
            save = gr.Button("Save settings")
            load = gr.UploadButton("Load settings", file_types=[".json"])
        command = gr.Textbox(
            label="Command line for this run", interactive=False, visible=False, lines=2,
            buttons=["copy"], elem_id="command",
        )  # fmt: skip
        saved = gr.File(label="Settings", visible=False)
    return TrainTab(
        page, dataset, name, preset, plan, form, batch, curve, warnings, problem, start,
        queue, preview_command, command, save, saved, load, part, race, watch,
    )  # fmt: skip


def wire(
    tab: TrainTab, reader: SettingsReader, report: gr.HTML, shown: gr.Textbox, tabs: gr.Tabs
) -> None:
    """Connect the buttons and everything that depends on the fields."""
    studio, told = reader.studio, [tab.problem, tab.watch.marks]
    asked = [*tab.asked, tab.name]

    def refuse(error: TimbreError) -> dict[Component, object]:
        gr.Warning("The settings are invalid; see the errors above the Start button.")
        problems = problems_of(error)
        return {
            tab.problem: gr.Markdown(as_list(problems), visible=True),
            tab.watch.marks: field_errors(problems, reader.tabs, pressed=True),
        }

    def settled() -> dict[Component, object]:
        return {tab.problem: gr.Markdown(visible=False), tab.watch.marks: ""}

    def press_start(text: str, dataset: str, name: str | None) -> dict[Component, object]:
        try:
            run = studio.start(name or "run", reader.read_to_start(text, dataset))
        except TimbreError as error:
            return refuse(error) | {shown: ""}
        return settled() | {shown: run.name, tabs: gr.Tabs(selected="live")}

    def press_queue(text: str, dataset: str, name: str | None) -> dict[Component, object]:
        try:
            run = studio.library.enqueue(name or "run", reader.read_to_start(text, dataset))
        except TimbreError as error:
            return refuse(error)
        gr.Info(as_shown(f"{run.name} was added to the queue on the Runs tab."), duration=4)
        return settled()

    tab.watch.show_after(show_run(tab.start, press_start, shown, tabs, asked, told))
    tab.watch.show_after(tab.queue.click(press_queue, asked, told, **READING))
    _wire_plan(tab, reader)
    _wire_dataset(tab, report)
    _wire_settings(tab, reader)

    def count(config: RunConfig) -> int:
        return plan(studio, config)[2]

    trials.wire(tab.trials, tab.form, tab.page, studio, tab.asked, reader.read, count, tab.watch)


def _wire_plan(tab: TrainTab, reader: SettingsReader) -> None:
    drawn = [tab.batch, tab.curve, tab.warnings, tab.watch.marks]

    def name_preset(text: str, preset: str) -> str:
        try:
            config = tab.form.config(read_values(text), demo_data())
        except ConfigError:
            return _OWN_SETTINGS
        return preset_shown(tab.form, config, preset)

    def draw(text: str, dataset: str, preset: str, stamp: str) -> list[str]:
        try:
            parts = describe_plan(reader.studio, reader.read(text, dataset))
        except TimbreError as error:
            parts = {"warnings": as_list(problems_of(error))}
        told = field_errors(
            reader.problems(text, dataset), reader.tabs, preset=name_preset(text, preset),
            start=parts.get("start", _START), stamp=stamp,
        )  # fmt: skip
        return [*(parts.get(name, "") for name in ("batch", "curve", "warnings")), told]

    chosen = tab.preset.input(
        None, tab.preset, None, **quiet(js="(preset) => { timbre.choosePreset(preset); }")
    )
    tab.watch.check_after(chosen)
    asked = [*tab.asked, tab.preset, tab.watch.stamp]
    drawing = gr.on(
        [tab.page.select, tab.watch.panel.input], draw, asked, drawn,
        **quiet(js=asking("plan"), trigger_mode="always_last"),
    )  # fmt: skip
    taking = quiet(js="(text) => timbre.takePlan(text)")
    drawing.then(None, tab.watch.marks, [tab.preset, tab.start], **taking)
    # The button must not show the plan of earlier settings while new ones are typed.
    tab.plan.change(None, None, tab.start, **quiet(js=f"() => [{json.dumps(_START)}]"))


def _wire_dataset(tab: TrainTab, report: gr.HTML) -> None:
    """Select the dataset that was checked last, as it is most likely the one to train on."""
    choices = json.dumps([demo_data().train_csv, _DEMO, _OWN])
    report.change(
        None, None, tab.dataset, **quiet(js=f"() => timbre.chooseDataset(...{choices})"),
    )  # fmt: skip


def _wire_settings(tab: TrainTab, reader: SettingsReader) -> None:
    studio = reader.studio

    def show_command(text: str, dataset: str, name: str | None) -> gr.Textbox:
        with toasts():
            free = free_name(studio.library.folder, name or "run")
            words = command_line(reader.read(text, dataset), str(studio.library.folder / free))
        return gr.Textbox(shlex.join(words), visible=True)

    def save_settings(text: str, dataset: str) -> gr.File:
        with toasts():
            config = reader.read(text, dataset)
        path = studio.scratch / "settings.json"
        path.write_text(json.dumps(config.to_json(), indent=2, ensure_ascii=False), "utf-8")
        return gr.File(str(path), visible=True)

    def load_settings(file: str | None) -> Answer:
        with toasts():
            if not file:
                raise ConfigError("No file was uploaded. Choose a file from Save settings.")
            return show_settings(tab, reader.data_form, read_config(Path(file)))

    tab.preview_command.click(show_command, [*tab.asked, tab.name], tab.command, **READING)
    tab.save.click(save_settings, tab.asked, tab.saved, **READING)
    loaded = fill_fields(
        tab.load.upload, load_settings, tab.load, name="load", fields=[tab.dataset]
    )
    tab.watch.check_after(loaded)


def show_settings(tab: TrainTab, data_form: DataForm, config: RunConfig) -> Answer:
    """Return the values and updates that show the settings of a RunConfig.

    Raises:
        ConfigError: it names an unknown family, optimizer, schedule or optimization.
    """
    resolve(config)
    is_demo = config.data.train_csv == demo_data().train_csv
    values: dict[str, FieldValue] = tab.form.fill(config) | data_form.fill(vars(config.data))
    return {**values, tab.dataset: _DEMO if is_demo else _OWN}


def wire_copy(tab: TrainTab, reader: SettingsReader, table: gr.HTML, tabs: gr.Tabs) -> None:
    """Connect the button of the run table that copies a run's settings to the form."""

    def copy(event: gr.EventData) -> Answer:
        name = event_detail(event, "run")
        with toasts():
            config = reader.studio.library.get(name).config
            updates = show_settings(tab, reader.data_form, config)
        gr.Info(as_shown(f"Copied the settings of {name}."), duration=4)
        return {**updates, tab.name: name, tabs: gr.Tabs(selected="train")}

    fields = [tab.dataset, tab.name]
    copied = fill_fields(table.apply, copy, None, name="copy", fields=fields, further=[tabs])
    tab.watch.check_after(copied)


def wire_race(
    tab: TrainTab, reader: SettingsReader, other: race_tab.RaceTab, tabs: gr.Tabs
) -> None:
    """Connect the race buttons of both tabs to the clips and settings of this form."""
    race_tab.wire(other, tab.race, reader.studio, tabs, tab.asked, reader.tabs, reader.read)

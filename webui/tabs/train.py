"""Build the Train tab: presets, the run form, the plan of the run and the Start button."""

import json
import math
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

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
from webui.forms.field_updates import asking, fill_fields
from webui.forms.form import Values
from webui.forms.form_validation import (
    FieldValidator,
    about_lists,
    as_list,
    field_errors,
    problems_of,
)
from webui.forms.preset_values import DEFAULTS, PresetValues, build_preset_values
from webui.forms.run_form import DataForm, RunForm
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
    preset_values: PresetValues
    plan: gr.HTML
    form: RunForm
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
    def components(self) -> set[Any]:
        """All inputs of the run."""
        return {self.dataset, self.name} | self.form.components


def read_config_of(tab: TrainTab, data_form: DataForm, studio: Studio, values: Values) -> RunConfig:
    """Return the validated RunConfig that the page shows, with absolute paths.

    Raises:
        ConfigError: lists every invalid field, conflict between fields and missing file.
    """
    is_demo = values[tab.dataset] == _DEMO
    data = demo_data() if is_demo else data_form.config(values)
    config = studio.checked(tab.form.config(values, data))
    problems = [*missing_files(config), *mismatches(resolve(config))]
    if problems:
        raise ConfigError(problems)
    return config


def problems_in(tab: TrainTab, data_form: DataForm, studio: Studio, values: Values) -> list[str]:
    """Return all problems of the settings, including the Data tab's even for a demo run."""
    found: list[str] = []
    try:
        read_config_of(tab, data_form, studio, values)
    except TimbreError as error:
        found += problems_of(error)
    if values[tab.dataset] == _DEMO:
        try:
            data_form.config(values)
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
        preset_values = build_preset_values(form, DEFAULTS)
        plan = gr.HTML(js_on_load=mount("mountPlan"), elem_id="plan-watch")
        curve = gr.HTML(elem_id="lr-curve")
        warnings = gr.Markdown(elem_id="lr-warnings")
        part = trials.build()
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
        page, dataset, name, preset, preset_values, plan, form, curve, warnings, problem, start,
        queue, preview_command, command, save, saved, load, part, race, watch,
    )  # fmt: skip


def wire(
    tab: TrainTab, data_form: DataForm, studio: Studio, shown: gr.Textbox, tabs: gr.Tabs
) -> None:
    """Connect the buttons and everything that depends on the fields."""
    fields: set[Any] = tab.components | set(data_form.widgets.values())

    told = [tab.problem, tab.watch.marks]

    def refuse(error: TimbreError) -> dict[Any, Any]:
        gr.Warning("The settings are invalid; see the errors above the Start button.")
        problems = problems_of(error)
        return {
            tab.problem: gr.Markdown(as_list(problems), visible=True),
            tab.watch.marks: field_errors(problems, fields, pressed=True),
        }

    def settled() -> dict[Any, Any]:
        return {tab.problem: gr.Markdown(visible=False), tab.watch.marks: ""}

    def read_to_start(values: Values) -> RunConfig:
        config = read_config_of(tab, data_form, studio, values)
        refuse_without_clips(studio, config)
        return config

    def press_start(values: Values) -> dict[Any, Any]:
        try:
            run = studio.start(values[tab.name] or "run", read_to_start(values))
        except TimbreError as error:
            return refuse(error) | {shown: ""}
        return settled() | {shown: run.name, tabs: gr.Tabs(selected="live")}

    def press_queue(values: Values) -> dict[Any, Any]:
        try:
            run = studio.library.enqueue(values[tab.name] or "run", read_to_start(values))
        except TimbreError as error:
            return refuse(error)
        gr.Info(as_shown(f"{run.name} was added to the queue on the Runs tab."), duration=4)
        return settled()

    tab.watch.show_after(show_run(tab.start, press_start, shown, tabs, fields, told))
    tab.watch.show_after(
        tab.queue.click(press_queue, fields, told, concurrency_limit=None, api_visibility="private")
    )
    _wire_plan(tab, data_form, studio, fields)
    _wire_dataset(tab, data_form)
    _wire_settings(tab, data_form, studio, fields)

    def read(values: Values) -> RunConfig:
        return read_config_of(tab, data_form, studio, values)

    def count(config: RunConfig) -> int:
        return plan(studio, config)[2]

    asked = fields - {tab.name}
    trials.wire(tab.trials, tab.form, tab.page, studio, asked, read, count, tab.watch)


def _wire_plan(tab: TrainTab, data_form: DataForm, studio: Studio, fields: set[Any]) -> None:
    drawn = [tab.form.effective_batch, tab.curve, tab.warnings, tab.watch.marks]

    def name_preset(values: Values) -> str:
        try:
            config = tab.form.config(values, demo_data())
        except ConfigError:
            return _OWN_SETTINGS
        return preset_shown(tab.form, config, str(values[tab.preset]))

    def draw(values: Values) -> list[Any]:
        try:
            config = read_config_of(tab, data_form, studio, values)
            parts = describe_plan(studio, config)
        except TimbreError as error:
            parts = {"warnings": as_list(problems_of(error))}
        told = field_errors(
            problems_in(tab, data_form, studio, values), fields, preset=name_preset(values),
            start=parts.get("start", _START), stamp=str(values[tab.watch.stamp]),
        )  # fmt: skip
        return [*(parts.get(name, "") for name in ("batch", "curve", "warnings")), told]

    quiet: dict[str, Any] = {
        "show_progress": "hidden",
        "concurrency_limit": None,
        "api_visibility": "private",
    }
    given = [tab.preset, *tab.preset_values.switches]
    chosen = tab.preset.input(
        None, given, tab.preset_values.filled, js="(...now) => timbre.choosePreset(...now)", **quiet
    )
    tab.watch.check_after(chosen)
    asked: set[Any] = fields | {tab.preset, tab.watch.stamp}
    triggers = [tab.page.select, *tab.watch.triggers(fields)]
    drawing = gr.on(
        triggers, draw, asked, drawn, trigger_mode="always_last", js=asking("plan"), **quiet
    )
    drawing.then(
        None, tab.watch.marks, [tab.preset, tab.start], js="(text) => timbre.takePlan(text)",
        **quiet,
    )  # fmt: skip
    # The button must not show the plan of earlier settings while new ones are typed.
    tab.plan.change(None, None, tab.start, js=f"() => [{json.dumps(_START)}]", **quiet)


def _wire_dataset(tab: TrainTab, data_form: DataForm) -> None:
    """Select the dataset that was checked last, as it is most likely the one to train on."""
    choices = json.dumps([demo_data().train_csv, _DEMO, _OWN])
    if data_form.report is not None:
        data_form.report.change(
            None, data_form.widgets["train_csv"], tab.dataset,
            js=f"(path) => timbre.chooseDataset(path, ...{choices})",
            show_progress="hidden", api_visibility="private",
        )  # fmt: skip


def _wire_settings(tab: TrainTab, data_form: DataForm, studio: Studio, fields: set[Any]) -> None:
    def show_command(values: Values) -> gr.Textbox:
        with toasts():
            config = read_config_of(tab, data_form, studio, values)
            name = free_name(studio.library.folder, values[tab.name] or "run")
            words = command_line(config, str(studio.library.folder / name))
        return gr.Textbox(shlex.join(words), visible=True)

    def save_settings(values: Values) -> gr.File:
        with toasts():
            config = read_config_of(tab, data_form, studio, values)
        path = studio.scratch / "settings.json"
        path.write_text(json.dumps(config.to_json(), indent=2, ensure_ascii=False), "utf-8")
        return gr.File(str(path), visible=True)

    def load_settings(file: str | None) -> dict[Any, Any]:
        with toasts():
            if not file:
                raise ConfigError("No file was uploaded. Choose a file from Save settings.")
            return show_settings(tab, data_form, read_config(Path(file)))

    quiet: dict[str, Any] = {"concurrency_limit": None, "api_visibility": "private"}
    tab.preview_command.click(show_command, fields, tab.command, **quiet)
    tab.save.click(save_settings, fields, tab.saved, **quiet)
    filled = list(fields - {tab.name})
    tab.watch.check_after(
        fill_fields(tab.load.upload, load_settings, tab.load, filled, name="load")
    )


def show_settings(tab: TrainTab, data_form: DataForm, config: RunConfig) -> dict[Any, Any]:
    """Return the updates that show the settings of a RunConfig.

    Raises:
        ConfigError: it names an unknown family, optimizer, schedule or optimization.
    """
    resolve(config)
    is_demo = config.data.train_csv == demo_data().train_csv
    updates = tab.form.fill(config) | data_form.fill(vars(config.data))
    return updates | {tab.dataset: _DEMO if is_demo else _OWN}


def wire_copy(
    tab: TrainTab, data_form: DataForm, studio: Studio, table: gr.HTML, tabs: gr.Tabs
) -> None:
    """Connect the button of the run table that copies a run's settings to the form."""

    def copy(event: gr.EventData) -> dict[Any, Any]:
        name = event_detail(event, "run")
        with toasts():
            updates = show_settings(tab, data_form, studio.library.get(name).config)
        gr.Info(as_shown(f"Copied the settings of {name}."), duration=4)
        return updates | {tab.name: name, tabs: gr.Tabs(selected="train")}

    filled = [*tab.components, *data_form.widgets.values()]
    tab.watch.check_after(fill_fields(table.apply, copy, None, filled, name="copy", further=[tabs]))


def wire_race(
    tab: TrainTab, other: race_tab.RaceTab, data_form: DataForm, studio: Studio, tabs: gr.Tabs
) -> None:
    """Connect the race buttons of both tabs to the clips and settings of this form."""
    fields = tab.components | set(data_form.widgets.values())

    def read(values: Values) -> RunConfig:
        return read_config_of(tab, data_form, studio, values)

    race_tab.wire(other, tab.race, studio, tabs, fields, read)

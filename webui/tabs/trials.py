"""Build the part of the Train tab with estimates, recommendations, benchmarks and LR search."""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from trainer.config.presets import PRESETS, apply_preset
from trainer.config.resolve import resolve
from trainer.core.device import Device, list_devices, read_use_or_none
from trainer.core.errors import ConfigError, RunError, TimbreError
from trainer.core.run_config import RunConfig
from trainer.profiling.recommendations import PURPOSES, advise, advise_preset
from webui.actions import event_detail, toasts
from webui.forms.field_updates import fill_fields
from webui.forms.form import Values
from webui.forms.form_validation import FieldValidator
from webui.forms.run_form import RunForm
from webui.jobs.background_job import write_config
from webui.jobs.synthesis import ask_trainer
from webui.scripts import mount
from webui.status import duration_text
from webui.studio import Studio
from webui.views.compatibility_check import escape_html

_PRIVATE_EVENT: dict[str, Any] = {
    "show_progress": "hidden",
    "concurrency_limit": None,
    "api_visibility": "private",
}
_ESTIMATE_S = 600.0  # Chosen by hand.
_TOO_LONG = "Timed out after ten minutes."
_RATE_STEPS = 100

ReadConfig = Callable[[Values], RunConfig]


@dataclass(frozen=True)
class ProfilingPart:
    """The widgets of the part."""

    estimate: gr.HTML
    fix: gr.Button
    fixed: gr.Textbox
    purpose: gr.Radio
    advice: gr.HTML
    follow: gr.Button
    find_rate: gr.Button
    measure: gr.Button
    minutes: gr.Number
    rates: gr.HTML
    measured: gr.HTML
    compare_levels: gr.Button
    levels: gr.HTML


def build() -> ProfilingPart:
    """Lay the part out."""
    with gr.Row(equal_height=True):
        waiting = '<div class="notice">Estimating memory and time ...</div>'
        estimate = gr.HTML(waiting, elem_id="estimate", min_height=0)
        fix = gr.Button("Make it fit", visible=False, elem_id="make-it-fit", scale=0, min_width=160)
    # Not gr.State, which keeps a connection open; browsers allow only six per host for all tabs.
    fixed = gr.Textbox(visible=False)
    with gr.Accordion("Recommended for this machine", open=False):
        purposes = [(PRESETS[name].label, name) for name in PURPOSES]
        purpose = gr.Radio(purposes, value="balanced", label="Goal", elem_id="purpose")
        advice = gr.HTML(apply_default_css=False, elem_id="advice")
        follow = gr.Button("Apply recommendations", size="sm", elem_id="follow-advice")
    with gr.Accordion("Tests before training", open=False, elem_id="trials"):
        with gr.Row():
            find_rate = gr.Button("Find learning rate", elem_id="find-rate")
            compare_levels = gr.Button("Compare checkpointing levels", elem_id="compare-levels")
            measure = gr.Button("Benchmark this machine", elem_id="measure-here")
            minutes = gr.Number(
                10, label="Benchmark minutes", minimum=1, maximum=120, elem_id="measure-minutes"
            )
        levels = gr.HTML(apply_default_css=False, elem_id="levels")
        rates = gr.HTML(apply_default_css=False, js_on_load=mount("mountRates"), elem_id="rates")
        measured = gr.HTML(
            apply_default_css=False, js_on_load=mount("mountMeasure"), elem_id="measured"
        )
    return ProfilingPart(
        estimate, fix, fixed, purpose, advice, follow, find_rate, measure, minutes, rates, measured,
        compare_levels, levels,
    )  # fmt: skip


def wire(
    part: ProfilingPart, form: RunForm, page: gr.Tab, studio: Studio, fields: set[Any],
    read: ReadConfig, count: Callable[[RunConfig], int], watch: FieldValidator,
) -> None:  # fmt: skip
    """Connect the part; `read` returns the RunConfig of the form, `count` its steps."""
    _wire_estimate(part, page, studio, fields, read, count, watch)
    _wire_advice(part, form, page, watch)
    _wire_rates(part, form, studio, fields, read, watch)
    _wire_fix(part, form, watch)
    _wire_measure(part, studio, fields, read)
    _wire_levels(part, studio, fields, read)


# The estimate


@functools.lru_cache(maxsize=64)
def _run_estimate(text: str, path: Path, known: int) -> dict[str, Any]:
    """Return the estimate for a configuration in JSON; `known` only invalidates the cache."""
    config = RunConfig.from_json(json.loads(text))
    words = ["estimate", "--json", "--fix", f"--config={write_config(config, path)}"]
    return ask_trainer(words, timeout_s=_ESTIMATE_S, too_long=_TOO_LONG)


def describe_estimate(found: dict[str, Any], steps: int, device: Device) -> str:
    """Render the estimate as HTML, with a warning if the memory is too small."""
    peak, usable = found["peak_gib"], found["usable_gib"]
    words = f"The largest step takes about <b>{_gib(peak)} of {device.memory_gib:.0f} GB</b>"
    if found["s_per_step"] is None:
        words += "; the time per step is unknown until you benchmark this machine."
    else:
        seconds = found["s_per_step"]
        words += (
            f", <b>{seconds:.3g} s</b> per step, {duration_text(seconds * steps)} for {steps} "
            f"steps <span class='quiet'>({escape_html(found['s_per_step_from'])})</span>."
        )
    if found["left_out"]:
        words += f" Not included: {escape_html(', '.join(found['left_out']))}."
    if not found["fits"]:
        fix = found.get("fix")
        remedy = (
            f"It fits with: {escape_html(', '.join(fix['words']))} ({_gib(fix['peak_gib'])} GB)."
            if fix
            else "No setting makes it fit; choose a smaller model or shorter clips."
        )
        problem = f"This exceeds the {_gib(usable)} GB that a run may use here. {remedy}"
        return f'<div class="notice error">{words}<br>{problem}</div>'
    use = read_use_or_none(device)
    free = use.memory_total_gib - use.memory_used_gib if use else usable
    if peak > free:
        busy = f"Only {_gib(free)} GB are free now: other programs use the rest."
        return f'<div class="notice warning">{words}<br>{busy}</div>'
    return f'<div class="notice">{words}</div>'


def _gib(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _wire_estimate(
    part: ProfilingPart, page: gr.Tab, studio: Studio, fields: set[Any], read: ReadConfig,
    count: Callable[[RunConfig], int], watch: FieldValidator,
) -> None:  # fmt: skip
    outputs = [part.estimate, part.fix, part.fixed]
    path = studio.rates.folder.parent / "estimate.json"

    def foresee(values: Values) -> list[Any]:
        try:
            config = read(values)
            known = len(list(studio.measurements()))
            found = _run_estimate(json.dumps(config.to_json()), path, known)
            text = describe_estimate(found, count(config), device_of(config))
        except ConfigError:
            # The problems are already shown below the learning-rate curve.
            return ["", gr.Button(visible=False), ""]
        except TimbreError as error:
            return [
                f'<div class="notice">{escape_html(str(error))}</div>',
                gr.Button(visible=False),
                "",
            ]
        fix = found.get("fix")
        return [text, gr.Button(visible=fix is not None), json.dumps(fix["config"]) if fix else ""]

    slow = _PRIVATE_EVENT | {"concurrency_limit": 1, "concurrency_id": "estimate"}
    slow |= {"show_progress": "minimal", "show_progress_on": part.estimate}
    triggers = [page.select, *watch.triggers(fields)]
    gr.on(triggers, foresee, fields, outputs, trigger_mode="always_last", **slow)


def _wire_fix(part: ProfilingPart, form: RunForm, watch: FieldValidator) -> None:
    def take_fix(fixed: str) -> dict[Any, Any]:
        with toasts():
            try:
                values = json.loads(fixed)
            except (TypeError, ValueError):
                return {part.fixed: ""}
            return form.fill(RunConfig.from_json(values if isinstance(values, dict) else {}))

    fields = list(form.components)
    watch.check_after(
        fill_fields(part.fix.click, take_fix, part.fixed, fields, name="fix", further=[part.fixed])
    )


def device_of(config: RunConfig) -> Device:
    """Return the device that a run would use."""
    devices = list_devices()
    wanted = config.training.device
    found = [device for device in devices if wanted in (device.kind, device.torch_name)]
    return found[0] if found else devices[0]


def describe_levels(rows: list[dict[str, Any]], device: Device) -> str:
    """Render memory and cost of each level of gradient checkpointing as an HTML table."""
    lines = "".join(
        f"<tr><td><b>{escape_html(row['level'])}</b></td><td>{_gib(row['peak_gib'])} GB</td>"
        f"<td>+{100 * row['more']:.0f} %</td><td>{'&#10003;' if row['fits'] else '-'}</td></tr>"
        for row in rows
    )
    head = (
        "<tr><th>Gradient checkpointing</th><th>Peak memory</th><th>Extra compute</th>"
        f"<th>Fits {device.memory_gib:.0f} GB</th></tr>"
    )
    return f"<table class='advice'>{head}{lines}</table>"


def _wire_levels(part: ProfilingPart, studio: Studio, fields: set[Any], read: ReadConfig) -> None:
    path = studio.rates.folder.parent / "levels.json"

    def compare(values: Values) -> str:
        with toasts():
            config = read(values)
            words = ["estimate", "--json", "--levels", f"--config={write_config(config, path)}"]
            found = ask_trainer(words, timeout_s=_ESTIMATE_S, too_long=_TOO_LONG)
            return describe_levels(found["levels"], device_of(config))

    slow = {"api_visibility": "private", "concurrency_limit": 1, "concurrency_id": "estimate"}
    part.compare_levels.click(compare, fields, part.levels, **slow)


# The advice


def describe_advice(device: Device, family: str, purpose: str) -> str:
    """Render the recommended preset and options with reasons as HTML."""
    preset = PRESETS[advise_preset(device, family, purpose)]
    rows = "".join(
        f"<tr><td>{'&#10003;' if each.tick else '-'}</td><td><b>{escape_html(each.label)}</b></td>"
        f"<td>{escape_html(each.why)}</td></tr>"
        for each in advise(device, family, purpose)
    )
    head = "<tr><th>Use</th><th>Option</th><th>Reason</th></tr>"
    return (
        f"<p><b>{escape_html(device.name)}</b>, {device.memory_gib:.0f} GB: preset "
        f"<b>{escape_html(preset.label)}</b>. {escape_html(preset.summary)}</p>"
        f"<table class='advice'>{head}{rows}</table>"
    )


def _wire_advice(part: ProfilingPart, form: RunForm, page: gr.Tab, watch: FieldValidator) -> None:
    device = list_devices()[0]
    chosen = [part.purpose, form.family.choice]

    def show(purpose: str, family: str) -> str:
        return describe_advice(device, family, purpose if purpose in PURPOSES else "balanced")

    def follow(values: Values) -> dict[Any, Any]:
        with toasts():
            purpose, family = values[part.purpose], values[form.family.choice]
            config = form.config(values, RunConfig().data)
            config = apply_preset(config, advise_preset(device, family, purpose))
            boxes = {
                each.name: each.options for each in advise(device, family, purpose) if each.tick
            }
            return form.fill(config.with_values(optimizations=boxes))

    gr.on(
        [page.select, part.purpose.input, form.family.choice.change],
        show,
        chosen,
        part.advice,
        **_PRIVATE_EVENT,
    )
    asked: set[Any] = form.components | {part.purpose}
    watch.check_after(
        fill_fields(part.follow.click, follow, asked, list(form.components), name="advice")
    )


# The search for a rate


def _wire_rates(
    part: ProfilingPart, form: RunForm, studio: Studio, fields: set[Any], read: ReadConfig,
    watch: FieldValidator,
) -> None:  # fmt: skip
    def press(values: Values) -> None:
        with toasts():
            start_rates(studio, read(values))
            gr.Info("Searching for a learning rate.", duration=4)

    def use() -> dict[Any, Any]:
        about = studio.rates.about()
        path = studio.rates.folder / str(about.get("out", "")) / "find-lr.json"
        with toasts():
            if not path.is_file():
                raise RunError("No learning rate has been found yet.")
            found = json.loads(path.read_text(encoding="utf-8"))
            widget = form.optimizer.forms[found["optimizer"]].widgets["lr"]
            gr.Info(f"The learning rate is now {found['suggestion']:g}.", duration=4)
            return {form.optimizer.choice: found["optimizer"], widget: f"{found['suggestion']:g}"}

    def act(event: gr.EventData) -> None:
        if event_detail(event, "action") == "stop":
            studio.rates.stop()

    part.find_rate.click(press, fields, None, **_PRIVATE_EVENT).then(
        None, None, None, js="() => timbre.refreshRates()", api_visibility="private"
    )
    part.rates.click(act, None, None, **_PRIVATE_EVENT)
    fields_of_rate = list(form.optimizer.components)
    watch.check_after(fill_fields(part.rates.apply, use, None, fields_of_rate, name="rate"))


def start_rates(studio: Studio, config: RunConfig) -> None:
    """Start the search for a learning rate with the settings of the form.

    Raises:
        ConfigError: the optimizer finds its learning rate itself.
    """
    entries = resolve(config)
    if entries.optimizer.effective_lr is not None:
        raise ConfigError(
            f"{entries.optimizer.label} finds its learning rate itself, so no search is needed. "
            "Choose another optimizer, or tune it in a race."
        )
    errand = studio.rates
    numbers = [int(path.name) for path in errand.folder.glob("*") if path.name.isdigit()]
    out = str(max(numbers, default=0) + 1)
    path = write_config(config, errand.folder / "config.json")
    words = ["find-lr", f"--config={path}", f"--steps={_RATE_STEPS}", "--lines"]
    about = {"out": out, "optimizer": config.optimizer.name, "family": config.family.name}
    errand.start([*words, f"--out={errand.folder / out}"], about)


# The measurement


def _wire_measure(part: ProfilingPart, studio: Studio, fields: set[Any], read: ReadConfig) -> None:
    def press(values: Values) -> None:
        with toasts():
            start_measuring(studio, read(values), float(values[part.minutes] or 10))
            gr.Info("Benchmark started. Each row appears when it is done.", duration=4)

    def act(event: gr.EventData) -> None:
        if event_detail(event, "action") == "stop":
            studio.measuring.stop()

    part.measure.click(press, fields | {part.minutes}, None, **_PRIVATE_EVENT).then(
        None, None, None, js="() => timbre.refreshMeasurements()", api_visibility="private"
    )
    part.measured.click(act, None, None, **_PRIVATE_EVENT)


def start_measuring(studio: Studio, config: RunConfig, minutes: float) -> None:
    """Start a benchmark of the optimizations with the settings of the form."""
    errand = studio.measuring
    path = write_config(config, errand.folder / "config.json")
    data = config.data
    words = ["measure", f"--config={path}", f"--family={config.family.name}", "--lines"]
    words += [f"--minutes={min(max(minutes, 0.5), 120):g}"]
    # Passed in addition to the file, because without them `measure` uses synthetic clips.
    given = {"base": config.base, "train-csv": data.train_csv, "train-data": data.train_data}
    words += [f"--{name}={value}" for name, value in given.items() if value]
    errand.start(words, {"family": config.family.name})

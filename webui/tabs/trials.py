"""Build the part of the Train tab with estimates, recommendations, benchmarks and LR search."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from trainer.config.presets import PRESETS, apply_preset
from trainer.config.resolve import resolve
from trainer.core.device import Device, list_devices, read_use_or_none
from trainer.core.errors import ConfigError, RunError, TimbreError
from trainer.core.run_config import RunConfig
from trainer.profiling.recommendations import PURPOSES, advise, advise_preset
from webui.actions import event_detail, toasts
from webui.forms.event_options import QUIET, READ_FORM, EventOptions, private, quiet
from webui.forms.field_updates import Answer, fill_fields
from webui.forms.form import read_values
from webui.forms.form_validation import FieldValidator
from webui.forms.run_form import RunForm
from webui.jobs.background_job import write_config
from webui.jobs.synthesis import ask_trainer
from webui.scripts import mount
from webui.status import duration_text
from webui.studio import Studio
from webui.views.markup import render

_ESTIMATING = private(concurrency_limit=1, concurrency_id="estimate", js=READ_FORM)
"""An estimate builds a model in a process of its own; one at a time."""
_ESTIMATE_S = 600.0  # Chosen by hand.
_TOO_LONG = "Timed out after ten minutes."
_RATE_STEPS = 100


ReadConfig = Callable[[str, str], RunConfig]
"""Reads the RunConfig of the page from the form's values and the dataset."""


@dataclass(frozen=True)
class ProfilingPart:
    """The widgets of the part, and the fields that choose a family."""

    model: gr.HTML
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


def build(model: gr.HTML) -> ProfilingPart:
    """Lay the part out; `model` shows the fields that choose a family."""
    with gr.Row(equal_height=True):
        waiting = render("notice", words="Estimating memory and time ...")
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
        model, estimate, fix, fixed, purpose, advice, follow, find_rate, measure, minutes, rates,
        measured, compare_levels, levels,
    )  # fmt: skip


def wire(
    part: ProfilingPart, form: RunForm, page: gr.Tab, studio: Studio, asked: Sequence[Component],
    read: ReadConfig, count: Callable[[RunConfig], int], watch: FieldValidator,
) -> None:  # fmt: skip
    """Connect the part; `read` returns the RunConfig of the inputs `asked`, `count` its steps."""
    _wire_estimate(part, page, studio, asked, read, count, watch)
    _wire_advice(part, form, page, watch)
    _wire_rates(part, form, studio, asked, read, watch)
    _wire_fix(part, form, watch)
    _wire_measure(part, studio, asked, read)
    _wire_levels(part, studio, asked, read)


# The estimate


@functools.lru_cache(maxsize=64)
def _run_estimate(text: str, path: Path, known: int) -> dict[str, Any]:
    """Return the estimate for a configuration in JSON; `known` only invalidates the cache."""
    config = RunConfig.from_json(json.loads(text))
    words = ["estimate", "--json", "--fix", f"--config={write_config(config, path)}"]
    return ask_trainer(words, timeout_s=_ESTIMATE_S, too_long=_TOO_LONG)


def describe_estimate(found: Mapping[str, Any], steps: int, device: Device) -> str:
    """Render the estimate as HTML, with a warning if the memory is too small."""
    use = read_use_or_none(device)
    free = use.memory_total_gib - use.memory_used_gib if use else found["usable_gib"]
    seconds, fix = found["s_per_step"], found.get("fix")
    return render(
        "estimate", found=found, steps=steps, memory=f"{device.memory_gib:.0f}",
        peak=_gib(found["peak_gib"]), usable=_gib(found["usable_gib"]), free=_gib(free),
        is_busy=found["peak_gib"] > free, fix=fix, fix_peak=_gib(fix["peak_gib"]) if fix else "",
        duration="" if seconds is None else duration_text(seconds * steps),
    )  # fmt: skip


def _gib(value: float) -> str:
    return f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _wire_estimate(
    part: ProfilingPart, page: gr.Tab, studio: Studio, asked: Sequence[Component],
    read: ReadConfig, count: Callable[[RunConfig], int], watch: FieldValidator,
) -> None:  # fmt: skip
    outputs = [part.estimate, part.fix, part.fixed]
    path = studio.rates.folder.parent / "estimate.json"

    def foresee(text: str, dataset: str) -> tuple[str, gr.Button, str]:
        hidden = gr.Button(visible=False)
        try:
            config = read(text, dataset)
            known = len(list(studio.measurements()))
            found = _run_estimate(json.dumps(config.to_json()), path, known)
            shown = describe_estimate(found, count(config), device_of(config))
        except ConfigError:
            # The problems are already shown below the learning-rate curve.
            return "", hidden, ""
        except TimbreError as error:
            return render("notice", words=error), hidden, ""
        fix = found.get("fix")
        return shown, gr.Button(visible=fix is not None), json.dumps(fix["config"]) if fix else ""

    triggers = [page.select, watch.panel.input]
    waiting: EventOptions = {**_ESTIMATING, "show_progress": "minimal"}
    waiting["trigger_mode"] = "always_last"
    gr.on(triggers, foresee, list(asked), outputs, show_progress_on=part.estimate, **waiting)


def _wire_fix(part: ProfilingPart, form: RunForm, watch: FieldValidator) -> None:
    def take_fix(fixed: str) -> Answer:
        with toasts():
            try:
                values = json.loads(fixed)
            except (TypeError, ValueError):
                return {part.fixed: ""}
            config = RunConfig.from_json(values if isinstance(values, dict) else {})
            return {**form.fill(config)}

    watch.check_after(
        fill_fields(part.fix.click, take_fix, part.fixed, name="fix", further=[part.fixed])
    )


def device_of(config: RunConfig) -> Device:
    """Return the device that a run would use."""
    devices = list_devices()
    wanted = config.training.device
    found = [device for device in devices if wanted in (device.kind, device.torch_name)]
    return found[0] if found else devices[0]


def describe_levels(rows: Sequence[Mapping[str, Any]], device: Device) -> str:
    """Render memory and cost of each level of gradient checkpointing as an HTML table."""
    return render("levels", rows=rows, memory=f"{device.memory_gib:.0f}", gib=_gib)


def _wire_levels(
    part: ProfilingPart, studio: Studio, asked: Sequence[Component], read: ReadConfig
) -> None:
    path = studio.rates.folder.parent / "levels.json"

    def compare(text: str, dataset: str) -> str:
        with toasts():
            config = read(text, dataset)
            words = ["estimate", "--json", "--levels", f"--config={write_config(config, path)}"]
            found = ask_trainer(words, timeout_s=_ESTIMATE_S, too_long=_TOO_LONG)
            return describe_levels(found["levels"], device_of(config))

    part.compare_levels.click(compare, list(asked), part.levels, **_ESTIMATING)


# The advice


def describe_advice(device: Device, family: str, purpose: str) -> str:
    """Render the recommended preset and options with reasons as HTML."""
    preset = PRESETS[advise_preset(device, family, purpose)]
    return render("advice", device=device, preset=preset, rows=advise(device, family, purpose))


def _wire_advice(part: ProfilingPart, form: RunForm, page: gr.Tab, watch: FieldValidator) -> None:
    device = list_devices()[0]

    def show(text: str, purpose: str) -> str:
        with toasts():
            family = form.family.chosen(read_values(text))
            return describe_advice(device, family, purpose if purpose in PURPOSES else "balanced")

    def follow(text: str, purpose: str) -> Answer:
        with toasts():
            values = read_values(text)
            family = form.family.chosen(values)
            config = form.config(values, RunConfig().data)
            config = apply_preset(config, advise_preset(device, family, purpose))
            boxes = {
                each.name: each.options for each in advise(device, family, purpose) if each.tick
            }
            return {**form.fill(config.with_values(optimizations=boxes))}

    given = [watch.form, part.purpose]
    triggers = [page.select, part.purpose.input, part.model.change]
    gr.on(triggers, show, given, part.advice, **quiet(js=READ_FORM))
    watch.check_after(fill_fields(part.follow.click, follow, given, name="advice"))


# The search for a rate


def _wire_rates(
    part: ProfilingPart, form: RunForm, studio: Studio, asked: Sequence[Component],
    read: ReadConfig, watch: FieldValidator,
) -> None:  # fmt: skip
    def press(text: str, dataset: str) -> None:
        with toasts():
            start_rates(studio, read(text, dataset))
            gr.Info("Searching for a learning rate.", duration=4)

    def use() -> Answer:
        about = studio.rates.about()
        path = studio.rates.folder / str(about.get("out", "")) / "find-lr.json"
        with toasts():
            if not path.is_file():
                raise RunError("No learning rate has been found yet.")
            found = json.loads(path.read_text(encoding="utf-8"))
            lr = form.optimizer.forms[found["optimizer"]].fields["lr"]
            gr.Info(f"The learning rate is now {found['suggestion']:g}.", duration=4)
            return {form.optimizer.id: found["optimizer"], lr.id: f"{found['suggestion']:g}"}

    def act(event: gr.EventData) -> None:
        if event_detail(event, "action") == "stop":
            studio.rates.stop()

    part.find_rate.click(press, list(asked), None, **quiet(js=READ_FORM)).then(
        None, None, None, js="() => timbre.refreshRates()", api_visibility="private"
    )
    part.rates.click(act, None, None, **QUIET)
    watch.check_after(fill_fields(part.rates.apply, use, None, name="rate"))


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


def _wire_measure(
    part: ProfilingPart, studio: Studio, asked: Sequence[Component], read: ReadConfig
) -> None:
    def press(text: str, dataset: str, minutes: float | None) -> None:
        with toasts():
            start_measuring(studio, read(text, dataset), float(minutes or 10))
            gr.Info("Benchmark started. Each row appears when it is done.", duration=4)

    def act(event: gr.EventData) -> None:
        if event_detail(event, "action") == "stop":
            studio.measuring.stop()

    part.measure.click(press, [*asked, part.minutes], None, **quiet(js=READ_FORM)).then(
        None, None, None, js="() => timbre.refreshMeasurements()", api_visibility="private"
    )
    part.measured.click(act, None, None, **QUIET)


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

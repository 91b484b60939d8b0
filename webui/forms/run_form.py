"""Build the form of a run from the registries, and convert it from and to a RunConfig."""

from typing import Any

import gradio as gr
from gradio.components import Component

from trainer.config.schedules import SCHEDULES
from trainer.core.device import Device, list_devices
from trainer.core.errors import ConfigError
from trainer.core.registry import discover
from trainer.core.run_config import DataConfig, RunConfig, TrainingConfig
from trainer.core.specs import ModelFamily, Optimization, OptimizerSpec
from webui.forms.form import ChoiceForm, OptionsForm, Values

_DEFAULTS = RunConfig()
_LISTS = ("train_csv", "eval_csv", "train_data", "columns")
_MAIN = ("steps", "epochs", "batch_size", "accumulate")


class DataForm(OptionsForm):
    """The fields of a DataConfig, and the report of its check."""

    def __init__(self) -> None:
        super().__init__(DataConfig, "data")
        self.report: gr.HTML | None = None

    @property
    def lists(self) -> list[Component]:
        """The fields that name the lists and their columns."""
        return [self.widgets[name] for name in _LISTS]

    def show_lists(self, data: DataConfig) -> dict[Any, Any]:
        """Return the updates that show the lists of `data`."""
        return {self.widgets[name]: getattr(data, name) for name in _LISTS}

    def config(self, values: Values) -> DataConfig:
        """Return the DataConfig.

        Raises:
            ConfigError: lists every field with an invalid value.
        """
        return DataConfig(**self.read(values))


class OptimizationsForm:
    """One checkbox per optimization, with its options; disabled if it cannot work here."""

    def __init__(self, device: Device) -> None:
        self.boxes: dict[str, gr.Checkbox] = {}
        self.forms: dict[str, OptionsForm] = {}
        self.unavailable: dict[str, str] = {}
        with gr.Row(elem_classes=["fields", "boxes"]):
            for name, entry in discover("trainer.optimizations", Optimization).items():
                with gr.Column(min_width=240):
                    self._add(name, entry, entry.unavailable(device))

    def _add(self, name: str, entry: Optimization, reason: str | None) -> None:
        if reason is not None:
            self.unavailable[name] = reason
        self.boxes[name] = gr.Checkbox(
            value=entry.default_on and reason is None,
            label=entry.label,
            info=entry.help if reason is None else f"Unavailable here: {reason}",
            interactive=reason is None,
            elem_id=f"optimization-{name}",
            min_width=240,
        )
        if reason is not None:
            return
        with gr.Column(visible=entry.default_on) as fields:
            self.forms[name] = OptionsForm(entry.options, f"optimization-{name}")
        if self.forms[name].widgets:
            self.boxes[name].change(
                lambda ticked: gr.Column(visible=ticked),
                self.boxes[name],
                fields,
                show_progress="hidden",
                api_visibility="private",
            )

    @property
    def components(self) -> set[Any]:
        """All checkboxes and option fields."""
        fields = {widget for form in self.forms.values() for widget in form.widgets.values()}
        return set(self.boxes.values()) | fields

    def read(self, values: Values) -> dict[str, dict[str, Any]]:
        """Return the selected optimizations with their non-default options."""
        ticked = [name for name in self.forms if values[self.boxes[name]]]
        return {name: self.forms[name].read_changes(values) for name in ticked}

    def fill(self, optimizations: dict[str, dict[str, Any]]) -> dict[Component, Any]:
        """Return the updates that select exactly these; unavailable ones stay off."""
        updates: dict[Component, Any] = {}
        for name, form in self.forms.items():
            updates[self.boxes[name]] = name in optimizations
            updates |= form.fill(optimizations.get(name, {}))
        return updates


class RunForm:
    """All widgets of a run except its data; `base` is the bundled checkpoint, or empty."""

    def __init__(self, base: str) -> None:
        machine = list_devices()[0]
        self.family = ChoiceForm(
            discover("trainer.models", ModelFamily), "family", "Model", _DEFAULTS.family.name
        )
        bundled = [("Bundled small voice", base)] if base else []
        self.base = gr.Dropdown(
            [("Random weights", ""), *bundled],
            value=base,
            label="Base checkpoint",
            info="The weights to start from. You can also enter the path of a folder or file.",
            allow_custom_value=True,
            interactive=True,
            elem_id="base",
        )
        self.bundled = base
        # In the browser, because a server's answer could overwrite a base typed meanwhile.
        self.family.choice.input(
            None,
            [self.family.choice, self.base],
            self.base,
            js="(family, base) => timbre.chooseFamily(family, base)",
            show_progress="hidden",
            api_visibility="private",
        )
        self.main = OptionsForm(TrainingConfig, "training", leave_out=_others(_MAIN))
        self.effective_batch = gr.Markdown(elem_id="effective-batch")
        gr.Markdown("### Optimizations")
        self.optimizations = OptimizationsForm(machine)
        gr.Markdown("### Optimizer and learning rate")
        with gr.Row():
            with gr.Column(min_width=320):
                self.optimizer = ChoiceForm(
                    discover("trainer.optimizers", OptimizerSpec),
                    "optimizer",
                    "Optimizer",
                    _DEFAULTS.optimizer.name,
                )
            with gr.Column(min_width=320):
                self.schedule = ChoiceForm(
                    SCHEDULES, "schedule", "Schedule", _DEFAULTS.schedule.name
                )
        with gr.Accordion(
            "More options: validation, previews, checkpoints", open=False, elem_id="more-training"
        ):
            self.more = OptionsForm(TrainingConfig, "training", leave_out=_MAIN)

    @property
    def components(self) -> set[Any]:
        """All widgets of the form."""
        parts = {self.base, *self.main.widgets.values(), *self.more.widgets.values()}
        for form in (self.family, self.optimizer, self.schedule, self.optimizations):
            parts = parts | form.components
        return parts

    def config(self, values: Values, data: DataConfig) -> RunConfig:
        """Return the RunConfig that the widgets show.

        Raises:
            ConfigError: lists every invalid field and every conflict between fields.
        """
        parts: dict[str, Any] = {"base": values[self.base] or ""}
        problems: list[str] = []
        readers = {
            "family": self.family.read,
            "optimizer": self.optimizer.read,
            "schedule": self.schedule.read,
            "optimizations": self.optimizations.read,
            "main": self.main.read,
            "more": self.more.read,
        }
        for part, read in readers.items():
            try:
                parts[part] = read(values)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        parts["training"] = parts.pop("main") | parts.pop("more")
        return RunConfig.from_json(parts).with_values(data=data)

    def fill(self, config: RunConfig) -> dict[Component, Any]:
        """Return the updates that show a RunConfig."""
        values = config.to_json()
        updates: dict[Component, Any] = {self.base: config.base}
        updates |= self.main.fill(values["training"]) | self.more.fill(values["training"])
        updates |= self.family.fill(values["family"])
        updates |= self.optimizer.fill(values["optimizer"])
        updates |= self.schedule.fill(values["schedule"])
        return updates | self.optimizations.fill(config.optimizations)


def _others(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in TrainingConfig.__dataclass_fields__ if name not in names)

"""Build the form of a run from the registries, and convert it from and to a RunConfig."""

from collections.abc import Mapping

import gradio as gr

from trainer.config.schedules import SCHEDULES
from trainer.core.device import Device, list_devices
from trainer.core.errors import ConfigError, FieldProblem
from trainer.core.registry import discover
from trainer.core.run_config import DataConfig, RunConfig, TrainingConfig
from trainer.core.specs import ModelFamily, Optimization, OptimizerSpec
from webui.forms.form import (
    ChoiceForm,
    FieldValue,
    FormDescription,
    FormValues,
    Options,
    OptionsForm,
    describe_entry,
)
from webui.scripts import mount
from webui.views.markup import render

_DEFAULTS = RunConfig()
_LISTS = ("train_csv", "eval_csv", "train_data", "columns")
_MAIN = ("steps", "epochs", "batch_size", "accumulate")
_BASE = "base"


class DataForm(OptionsForm):
    """The fields of a DataConfig."""

    def __init__(self) -> None:
        super().__init__(DataConfig, "data")

    def show_lists(self, data: DataConfig) -> dict[str, FieldValue]:
        """Return the values that show the lists of `data`."""
        return {self.fields[name].id: getattr(data, name) for name in _LISTS}

    def config(self, values: FormValues) -> DataConfig:
        """Return the DataConfig.

        Raises:
            ConfigError: lists every field with an invalid value.
        """
        return DataConfig(**self.read(values))  # type: ignore[arg-type]  # just validated


class OptimizationsForm:
    """One checkbox per optimization, with its options; disabled if it cannot work here."""

    def __init__(self, device: Device) -> None:
        self.entries = discover("trainer.optimizations", Optimization)
        reasons = {name: entry.unavailable(device) for name, entry in self.entries.items()}
        self.unavailable = {name: reason for name, reason in reasons.items() if reason is not None}
        self.forms = {
            name: OptionsForm(entry.options, f"optimization-{name}")
            for name, entry in self.entries.items()
            if name not in self.unavailable
        }
        self.boxes = {name: f"optimization-{name}" for name in self.forms}

    @property
    def ids(self) -> list[str]:
        """The element ids of all checkboxes and option fields."""
        return [id for name, form in self.forms.items() for id in (self.boxes[name], *form.ids)]

    def is_on(self, name: str) -> bool:
        """Whether an untouched form selects an optimization."""
        return self.entries[name].default_on and name in self.forms

    def read(self, values: FormValues) -> dict[str, dict[str, object]]:
        """Return the selected optimizations with their non-default options."""
        ticked = [name for name, box in self.boxes.items() if values.get(box, self.is_on(name))]
        return {name: self.forms[name].read_changes(values) for name in ticked}

    def fill(self, optimizations: Mapping[str, Options]) -> dict[str, FieldValue]:
        """Return the values that select exactly these; unavailable ones stay off."""
        values: dict[str, FieldValue] = {}
        for name, form in self.forms.items():
            values[self.boxes[name]] = name in optimizations
            values |= form.fill(optimizations.get(name, {}))
        return values


class RunForm:
    """All fields of a run except its data; `base` is the bundled checkpoint, or empty."""

    def __init__(self, base: str) -> None:
        self.bundled = base
        self.family = ChoiceForm(
            discover("trainer.models", ModelFamily), "family", "Model", _DEFAULTS.family.name
        )
        self.main = OptionsForm(TrainingConfig, "training", leave_out=_others(_MAIN))
        self.optimizations = OptimizationsForm(list_devices()[0])
        self.optimizer = ChoiceForm(
            discover("trainer.optimizers", OptimizerSpec),
            "optimizer",
            "Optimizer",
            _DEFAULTS.optimizer.name,
        )
        self.schedule = ChoiceForm(SCHEDULES, "schedule", "Schedule", _DEFAULTS.schedule.name)
        self.more = OptionsForm(TrainingConfig, "training", leave_out=_MAIN)

    @property
    def ids(self) -> list[str]:
        """The element ids of all fields, in the order of the page."""
        parts = (self.main, self.optimizations, self.optimizer, self.schedule, self.more)
        return [*self.family.ids, _BASE, *(field for part in parts for field in part.ids)]

    def initial(self) -> dict[str, FieldValue]:
        """Return the defaults of what decides which options are shown, and of the base."""
        choices = (self.family, self.optimizer, self.schedule)
        boxes = self.optimizations.boxes.items()
        return (
            {choice.id: choice.default for choice in choices}
            | {box: self.optimizations.is_on(name) for name, box in boxes}
            | {_BASE: self.bundled}
        )

    def config(self, values: FormValues, data: DataConfig) -> RunConfig:
        """Return the RunConfig that the fields show.

        Raises:
            ConfigError: lists every invalid field and every conflict between fields.
        """
        parts: dict[str, object] = {}
        problems: list[str] = []
        readers = {
            "family": self.family.read,
            "base": self._read_base,
            "optimizer": self.optimizer.read,
            "schedule": self.schedule.read,
            "optimizations": self.optimizations.read,
        }
        training: dict[str, object] = {}
        for form in (self.main, self.more):
            try:
                training |= form.read(values)
            except ConfigError as error:
                problems += error.problems
        for part, read in readers.items():
            try:
                parts[part] = read(values)
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)
        return RunConfig.from_json(parts | {"training": training}).with_values(data=data)

    def _read_base(self, values: FormValues) -> str:
        base = values.get(_BASE, self.bundled)
        # False: another checkpoint was chosen from the list, but no path is given.
        if not isinstance(base, str):
            raise ConfigError(FieldProblem("Enter the path of the base checkpoint.", _BASE))
        return base

    def fill(self, config: RunConfig) -> dict[str, FieldValue]:
        """Return the values that show a RunConfig."""
        training = vars(config.training)
        return (
            {_BASE: config.base}
            | self.main.fill(training)
            | self.more.fill(training)
            | self.family.fill(config.family)
            | self.optimizer.fill(config.optimizer)
            | self.schedule.fill(config.schedule)
            | self.optimizations.fill(config.optimizations)
        )


def show_form(
    template: str, described: FormDescription, *, tells: str = "", **values: object
) -> gr.HTML:
    """Lay out fields that the page's script builds and reads.

    An edit of the field `tells` triggers `change` at once; all others wait for a pause.
    """
    return gr.HTML(
        render(template, **values),
        apply_default_css=False,
        js_on_load=mount("mountForm", "props"),
        elem_classes="form-panel",
        form=described.to_json() | {"tells": tells},
    )


def show_options(key: str, form: OptionsForm, *, tells: str = "") -> gr.HTML:
    """Lay out the fields of one form."""
    described = FormDescription()
    described.add(key, form)
    return show_form("form_options", described, tells=tells, key=key)


def show_model(form: RunForm) -> gr.HTML:
    """Lay out the family, the base and the length of a run; tells when another family is chosen."""
    described = FormDescription()
    _describe_choice(described, form.family)
    described.add("training-main", form.main)
    return show_form("form_model", described, tells=form.family.id, form=form)


def show_training(form: RunForm) -> gr.HTML:
    """Lay out the optimizations, the optimizer, the schedule and further settings of a run."""
    described = FormDescription()
    for name, options in form.optimizations.forms.items():
        described.add(form.optimizations.boxes[name], options)
    for choice in (form.optimizer, form.schedule):
        _describe_choice(described, choice)
    described.add("training-more", form.more)
    return show_form("form_training", described, form=form)


def _describe_choice(described: FormDescription, choice: ChoiceForm) -> None:
    for name, entry in choice.entries.items():
        described.add(f"{choice.name}-{name}", choice.forms[name], describe_entry(entry))


def _others(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in TrainingConfig.__dataclass_fields__ if name not in names)

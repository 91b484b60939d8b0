"""Fields of an options dataclass: what the page shows of them, and how their values are read back.

The page's script (options.js) shows the fields and keeps their values; a request sends those that
were edited or filled, as one JSON object by element id. All other fields hold their defaults.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from trainer.core.errors import ConfigError, FieldProblem, within
from trainer.core.options import OptionInfo, describe, parse_value
from trainer.core.run_config import Choice
from trainer.core.specs import ModelFamily, OptimizerSpec, Schedule

FieldValue: TypeAlias = str | bool
FormValues: TypeAlias = Mapping[str, FieldValue]
"""The values of fields by element id; a field that is missing shows its default."""
Options: TypeAlias = Mapping[str, object]
"""Validated values of options by name."""
Entry: TypeAlias = ModelFamily | OptimizerSpec | Schedule


def read_values(text: str) -> FormValues:
    """Return the values that the page's script sent.

    Raises:
        ConfigError: the text is not what the script sends.
    """
    try:
        values = json.loads(text)
    except (TypeError, ValueError):
        values = None
    if not isinstance(values, dict) or not all(isinstance(v, str | bool) for v in values.values()):
        raise ConfigError("The form could not be read. Reload the page and try again.")
    return values


@dataclass(frozen=True)
class Field:
    """One option as the page shows it."""

    id: str
    info: OptionInfo
    default: FieldValue

    @property
    def kind(self) -> str:
        """The control that edits it: `tick`, `list`, `number` or `text`."""
        if self.info.kind is bool:
            return "tick"
        if self.info.choices:
            return "list"
        return "number" if self.info.kind in (int, float) else "text"

    def read(self, values: FormValues) -> object:
        """Return the validated value.

        Raises:
            ConfigError: the value is invalid.
        """
        value = values.get(self.id, self.default)
        is_empty = self.kind == "number" and isinstance(value, str) and not value.strip()
        return parse_value(self.info, None if is_empty else value)


class OptionsForm:
    """The fields of one options dataclass; `start` replaces defaults in what they show first."""

    def __init__(
        self, options_class: type, name: str, *, leave_out: tuple[str, ...] = (),
        start: Options | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        infos = [
            info
            for info in describe(options_class)
            if info.name not in leave_out and not info.retired
        ]
        first = start or {}
        self.fields = {
            info.name: Field(
                f"{name}-{info.name}", info, as_shown(first.get(info.name, info.default))
            )
            for info in infos
        }

    @property
    def ids(self) -> list[str]:
        """The element ids of the fields, in the order of the page: first those always shown."""
        fields = sorted(self.fields.values(), key=lambda field: field.info.advanced)
        return [field.id for field in fields]

    def read(self, values: FormValues) -> dict[str, object]:
        """Return the options as validated plain values.

        Raises:
            ConfigError: lists every field with an invalid value.
        """
        parsed: dict[str, object] = {}
        problems: list[str] = []
        for name, field in self.fields.items():
            try:
                parsed[name] = field.read(values)
            except ConfigError as error:
                problems += within(self.name, error.problems)
        if problems:
            raise ConfigError(problems)
        return parsed

    def read_changes(self, values: FormValues) -> dict[str, object]:
        """Return the options that differ from their defaults."""
        read = self.read(values)
        return {name: value for name, value in read.items() if value != self._default(name)}

    def fill(self, options: Options) -> dict[str, FieldValue]:
        """Return the values that show these options, with defaults for all others."""
        return {
            field.id: as_shown(options.get(name, self._default(name)))
            for name, field in self.fields.items()
        }

    def _default(self, name: str) -> object:
        return self.fields[name].info.default


class FormDescription:
    """Describes forms for the page's script, which builds their fields when they are shown.

    Many entries have the same options, so each label with its help is sent only once.
    """

    def __init__(self) -> None:
        self._looks: dict[tuple[object, ...], int] = {}
        self._entries: dict[str, dict[str, object]] = {}

    def add(self, key: str, form: OptionsForm, about: str = "") -> None:
        """Add a form under the key by which the page shows it; `about` is said above its fields."""
        fields = [[name, self._look(field), field.default] for name, field in form.fields.items()]
        self._entries[key] = {"name": form.name, "about": about, "fields": fields}

    def to_json(self) -> dict[str, object]:
        """Return the description as JSON values."""
        return {"looks": list(self._looks), "entries": self._entries}

    def _look(self, field: Field) -> int:
        info = field.info
        look = (info.label, info.help, field.kind, info.advanced, info.optional, info.choices)
        return self._looks.setdefault(look, len(self._looks))


def as_shown(value: object) -> FieldValue:
    """Return what a field shows of a value; `parse_value` parses it back to an equal value."""
    return value if isinstance(value, bool) else as_text(value)


def as_text(value: object) -> str:
    """Format a value for a text field; `parse_value` parses it back to an equal value."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return str(int(value))
    return "" if value is None else str(value)


class ChoiceForm:
    """A list of registry entries, and the fields of the options of the chosen one."""

    def __init__(self, entries: Mapping[str, Entry], name: str, label: str, default: str) -> None:
        self.name, self.label, self.default = name, label, default
        self.entries = entries
        self.id = f"{name}-choice"
        self.forms = {
            key: OptionsForm(entry.options, f"{name}-{key}") for key, entry in entries.items()
        }

    @property
    def ids(self) -> list[str]:
        """The element ids of the list and of every option field."""
        return [self.id, *(field for form in self.forms.values() for field in form.ids)]

    def chosen(self, values: FormValues) -> str:
        """Return the name of the chosen entry.

        Raises:
            ConfigError: there is no such entry.
        """
        name = str(values.get(self.id, self.default))
        if name not in self.forms:
            text = f"No {self.name} is chosen. Choose one of {', '.join(self.forms)}."
            raise ConfigError(FieldProblem(text, f"{self.name}.choice"))
        return name

    def read(self, values: FormValues) -> dict[str, object]:
        """Return the choice as JSON values: its name and its non-default options."""
        name = self.chosen(values)
        return {"name": name, "options": self.forms[name].read_changes(values)}

    def fill(self, choice: Choice) -> dict[str, FieldValue]:
        """Return the values that show a choice; the fields of other entries are not changed."""
        return {self.id: choice.name} | self.forms[choice.name].fill(choice.options)


def describe_entry(entry: Entry) -> str:
    """Return the text under a choice: summary, licence and advice."""
    licence, advice = getattr(entry, "licence", ""), getattr(entry, "advice", "")
    parts = (entry.summary, f"Licence: {licence}." if licence else "", advice)
    return " ".join(part for part in parts if part)

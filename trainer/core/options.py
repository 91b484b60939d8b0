"""Option fields: one `option(...)` line feeds the page, the command line and the docs."""

import dataclasses
import difflib
import math
import types
import typing
from dataclasses import dataclass
from typing import Any

from trainer.core.errors import ConfigError, FieldProblem

Options = Any
"""An instance of an entry's own Options dataclass, whose type only the entry itself knows."""
Values = dict[str, Any]
"""Settings by name as JSON holds them; nothing uses one before `parse_value` has checked it."""

_KEY = "timbre"  # dataclass metadata is shared by all libraries, so our part has a key of its own


@dataclass(frozen=True)
class OptionInfo:
    """Everything declared about one field of an Options dataclass."""

    name: str
    kind: type
    optional: bool
    default: object
    label: str
    help: str
    min: float | None
    max: float | None
    choices: tuple[str, ...]
    advanced: bool
    is_path: bool
    retired: bool = False


def option(
    default: object,
    label: str,
    help: str,  # noqa: A002 - the field's standard word on every surface that shows it
    *,
    min: float | None = None,  # noqa: A002
    max: float | None = None,  # noqa: A002
    choices: tuple[str, ...] = (),
    advanced: bool = False,
    is_path: bool = False,
) -> Any:
    """Declare a dataclass field with its label, help, bounds (inclusive) and choices.

    A path is made absolute before a run stores it and must exist when given. An `advanced` option
    sits in the collapsed part of the form.
    """
    about = {"label": label, "help": help, "min": min, "max": max, "choices": tuple(choices)}
    about |= {"advanced": advanced, "is_path": is_path}
    return dataclasses.field(default=default, metadata={_KEY: about})


def retired_option(default: Any, label: str, reason: str) -> Any:
    """Declare a field that is read, because old runs store it, but isn't shown and has no effect.

    If a run sets it, a notice gives the reason.
    """
    field = option(default, label, reason)
    about = field.metadata[_KEY] | {"retired": True}
    return dataclasses.field(default=default, metadata={_KEY: about})


def describe(options_class: type) -> list[OptionInfo]:
    """List the option fields of a dataclass in declaration order."""
    # `field.type` may be a string; the hints are real types.
    hints = typing.get_type_hints(options_class)
    infos = []
    for field in dataclasses.fields(options_class):
        if _KEY in field.metadata:
            kind, optional = _plain_type(hints[field.name])
            infos.append(
                OptionInfo(field.name, kind, optional, field.default, **field.metadata[_KEY])
            )
    return infos


def build_options(options_class: type, values: Values, where: str) -> Options:
    """Build an Options dataclass from plain values.

    Raises:
        ConfigError: lists every unknown field (with the closest known name) and every bad value.
    """
    infos = {info.name: info for info in describe(options_class)}
    problems = [
        unknown_name(name, list(infos), f"option of {where}")
        # Unknown names and bad values are collected, so that one run of a command shows all of
        # them.
        for name in values
        if name not in infos
    ]
    parsed = {}
    for name in values:
        if name in infos:
            try:
                parsed[name] = parse_value(infos[name], values[name])
            except ConfigError as error:
                problems += [
                    FieldProblem(f"{where}: {problem}", name) for problem in error.problems
                ]
    if problems:
        raise ConfigError(problems)
    return options_class(**parsed)


def to_values(options: Options) -> Values:
    """Return an Options instance as plain JSON values."""
    return {info.name: getattr(options, info.name) for info in describe(type(options))}


def parse_value(info: OptionInfo, value: object) -> Any:
    """Convert a value (from JSON, a form or a command line) to the field's type and check it.

    Raises:
        ConfigError: the value has the wrong type, is out of bounds or not one of the choices.
    """
    if value is None or (
        # An emptied text field of the page sends "" where JSON would send null.
        info.optional and isinstance(value, str) and value.strip() in ("", "auto")
    ):
        if info.optional:
            return None
        problem = f"{info.label} ({info.name}) is empty. Enter {_expected(info)}."
        raise ConfigError(FieldProblem(problem, info.name))
    wrong = FieldProblem(
        f"{info.label} ({info.name}) is {value!r}; expected {_expected(info)}.", info.name
    )
    try:
        parsed = _convert(info.kind, value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(wrong) from None  # a person reads the sentence, not Python's reason
    too_low = info.min is not None and parsed < info.min
    too_high = info.max is not None and parsed > info.max
    if too_low or too_high or (info.choices and parsed not in info.choices):
        raise ConfigError(wrong)
    return parsed


def unknown_name(name: str, known: list[str], kind: str) -> str:
    """Return an error for an unknown name, with the closest match and all known names."""
    # difflib's usual cutoff of 0.6 finds typing errors without offering unrelated names.
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"'{name}' is not a known {kind}.{hint} Known: {', '.join(known) or 'none'}."


def _plain_type(hint: Any) -> tuple[type, bool]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = [part for part in typing.get_args(hint) if part is not type(None)]
        return kinds[0], True
    return hint, False


def _convert(kind: type, value: Any) -> Any:
    if kind is bool:
        if isinstance(value, str) and value.lower() in ("true", "false", "yes", "no", "on", "off"):
            return value.lower() in ("true", "yes", "on")
        if isinstance(value, bool):
            return value
        raise ValueError
    if kind in (int, float) and isinstance(value, bool):
        raise ValueError  # in Python, True is an int; as a number it is surely a mistake
    if kind is int:
        # Convert integers directly: beyond 2**53 a detour through float loses digits.
        if isinstance(value, int) or (isinstance(value, str) and value.strip().isdecimal()):
            return int(value)
        number = float(value)
        if not number.is_integer():
            raise ValueError
        return int(number)
    if kind is float:
        number = float(value)
        # float() also reads "nan" and "inf", and NaN would pass every bound, because it compares
        # false.
        if not math.isfinite(number):
            raise ValueError
        return number
    if kind is str and not isinstance(value, str):
        raise ValueError
    return kind(value)


def _expected(info: OptionInfo) -> str:
    if info.choices:
        return "one of " + ", ".join(info.choices)
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    bounds = ""
    if info.min is not None and info.max is not None:
        bounds = f" from {info.min:g} to {info.max:g}"
    elif info.min is not None:
        bounds = f" of at least {info.min:g}"
    elif info.max is not None:
        bounds = f" of at most {info.max:g}"
    empty = ", or nothing for automatic" if info.optional else ""
    return names.get(info.kind, info.kind.__name__) + bounds + empty

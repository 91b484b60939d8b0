"""Options: one documented line a field, and values from anywhere become the field's type."""

from dataclasses import dataclass
from typing import Any

import pytest

from trainer.core.errors import ConfigError
from trainer.core.options import OptionInfo, build_options, describe, option, parse_value, to_values
from trainer.core.options import unknown_name as say_unknown


@dataclass(frozen=True)
class _Options:
    rate: float = option(0.5, "Rate", "How fast.", min=0.0, max=1.0)
    count: int = option(3, "Count", "How many.", min=1)
    limit: int | None = option(None, "Limit", "Empty: none.", max=9)
    loud: bool = option(False, "Loud", "Whether.", advanced=True)
    mode: str = option("a", "Mode", "Which.", choices=("a", "b"))
    hidden: int = 7


def _info(name: str) -> OptionInfo:
    return next(info for info in describe(_Options) if info.name == name)


def test_the_documented_fields_come_in_their_order_with_all_that_is_known() -> None:
    infos = describe(_Options)

    assert [info.name for info in infos] == ["rate", "count", "limit", "loud", "mode"]
    assert infos[0] == OptionInfo(
        "rate", float, False, 0.5, "Rate", "How fast.", 0.0, 1.0, (), False, False
    )
    assert (infos[2].kind, infos[2].optional, infos[2].default) == (int, True, None)
    assert infos[3].advanced
    assert infos[4].choices == ("a", "b")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rate", "0.25", 0.25),
        ("rate", 1, 1.0),
        ("rate", "1e-3", 1e-3),
        ("count", "12", 12),
        ("count", 4.0, 4),
        ("count", "1e3", 1000),
        ("count", 2**53 + 1, 2**53 + 1),
        ("count", " 9007199254740993", 9007199254740993),
        ("limit", None, None),
        ("limit", "", None),
        ("limit", " auto ", None),
        ("limit", "9", 9),
        ("loud", "yes", True),
        ("loud", "OFF", False),
        ("loud", True, True),
        ("mode", "b", "b"),
    ],
)
def test_a_value_becomes_the_type_of_its_field(name: str, value: Any, expected: Any) -> None:
    parsed = parse_value(_info(name), value)

    assert parsed == expected
    assert type(parsed) is type(expected)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("rate", 1.01, "a number from 0 to 1"),
        ("rate", "fast", "a number from 0 to 1"),
        ("rate", "nan", "a number from 0 to 1"),
        ("rate", float("inf"), "a number from 0 to 1"),
        ("rate", True, "a number"),
        ("rate", None, "a number"),
        pytest.param("rate", 10**400, "a number from 0 to 1", id="huge"),
        ("rate", [1], "a number"),
        ("count", 0, "a whole number of at least 1"),
        ("count", 1.5, "a whole number of at least 1"),
        ("count", False, "a whole number"),
        ("limit", 10, "a whole number of at most 9, or nothing for automatic"),
        ("loud", "maybe", "true or false"),
        ("loud", 1, "true or false"),
        ("mode", "c", "one of a, b"),
        ("mode", 3, "one of a, b"),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_what_was_expected(
    name: str, value: Any, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_value(_info(name), value)

    assert expected in str(caught.value)
    assert f"({name})" in str(caught.value)


def test_values_and_options_are_the_same_thing_twice() -> None:
    options = _Options(rate=0.1, limit=4, loud=True)

    values = to_values(options)

    assert values == {"rate": 0.1, "count": 3, "limit": 4, "loud": True, "mode": "a"}
    assert build_options(_Options, values, "test") == options


def test_every_problem_is_listed_at_once_and_says_where() -> None:
    with pytest.raises(ConfigError) as caught:
        build_options(_Options, {"rat": 1, "rate": 2, "count": 0, "loud": True}, "toy")

    assert len(caught.value.problems) == 3
    assert "'rat' is not a known option of toy. Did you mean 'rate'?" in caught.value.problems[0]
    assert all("toy" in problem for problem in caught.value.problems)
    assert caught.value.exit_code == 2


def test_an_unknown_name_is_answered_with_what_there_is() -> None:
    assert say_unknown("adam", ["adamw", "prodigy"], "optimizer") == (
        "'adam' is not a known optimizer. Did you mean 'adamw'? Known: adamw, prodigy."
    )
    assert say_unknown("x", [], "thing") == "'x' is not a known thing. Known: none."

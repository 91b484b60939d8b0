"""The train state is data: it can be read without knowing who put a function into it."""

import typing
from collections.abc import Callable
from dataclasses import fields

from trainer.core.train_state import TrainState


def test_no_field_of_the_train_state_is_a_function() -> None:
    hints = typing.get_type_hints(TrainState)

    callables = [
        field.name
        for field in fields(TrainState)
        for part in (hints[field.name], *typing.get_args(hints[field.name]))
        if typing.get_origin(part) is Callable
    ]

    assert callables == []
    assert typing.get_origin(Callable[[int], float]) is Callable

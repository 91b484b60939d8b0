"""Python looks for cycles in the pauses of the loop alone, and none of them stays for long."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.toy import make_setup
from trainer.core.events import StepDone, ValidationDone
from trainer.core.train_state import Cadence
from trainer.training import loop
from trainer.training.garbage_collection import collect_garbage, manual_garbage_collection


class Cycle:
    """Refers to itself and holds a tensor, as a hook on an autograd graph may."""

    def __init__(self) -> None:
        self.own = self
        self.tensor = torch.zeros(10)


@pytest.fixture
def searches() -> Iterator[list[int]]:
    """The generations that were searched, in order."""
    found: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def test_no_search_falls_into_a_step(tmp_path: Path, searches: list[int]) -> None:
    state = make_setup(tmp_path, steps=40)
    state.validate_every = state.save_every = Cadence(20)
    seen: dict[int, int] = {}

    def note(event: object) -> None:
        if isinstance(event, StepDone):
            seen[event.step] = len(searches)
            _make_litter()
        if isinstance(event, ValidationDone):
            _make_litter()

    loop.train(state, note)

    assert len({seen[step] for step in range(1, 21)}) == 1
    assert len({seen[step] for step in range(21, 41)}) == 1
    assert seen[21] == seen[20] + 1


def _make_litter() -> None:
    """Make more cycles than the collector waits for when it runs by itself."""
    for _ in range(2000):
        litter: list[Any] = []
        litter.append(litter)


def test_cycles_that_steps_leave_do_not_pile_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = make_setup(tmp_path, steps=120)
    state.validate_every = state.save_every = Cadence(1000)
    alive: weakref.WeakSet[Cycle] = weakref.WeakSet()
    most = []
    step_of = loop.train_step

    def littering_step(*arguments: Any) -> Any:
        alive.add(Cycle())
        most.append(len(alive))
        return step_of(*arguments)

    monkeypatch.setattr(loop, "train_step", littering_step)
    loop.train(state, lambda event: None)

    assert max(most) <= 51
    assert len(alive) == 0


def test_a_run_of_any_length_keeps_as_many_objects(tmp_path: Path) -> None:
    counts = []
    for steps in (20, 200):
        loop.train(make_setup(tmp_path / str(steps), steps=steps), lambda event: None)
        gc.collect()
        counts.append(len(gc.get_objects()))

    assert counts[1] - counts[0] < 500


@pytest.mark.parametrize("is_frozen_around", [False, True])
def test_collection_is_as_it_was_after_a_run_that_fails(is_frozen_around: bool) -> None:
    gc.unfreeze()
    if is_frozen_around:
        gc.freeze()
    assert gc.isenabled()

    with pytest.raises(ZeroDivisionError), manual_garbage_collection():
        left_out = gc.get_freeze_count()
        assert not gc.isenabled()
        raise ZeroDivisionError
    kept = gc.get_freeze_count()
    gc.freeze()  # As conftest.py left it.

    assert gc.isenabled()
    assert left_out > 0
    assert (kept > 0) == is_frozen_around  # What is frozen may still end, so it is not counted.


def test_a_pause_collects_what_is_old_too() -> None:
    with manual_garbage_collection():
        cycle = Cycle()
        old = weakref.ref(cycle)
        gc.collect()
        del cycle

        collect_garbage(50, is_pause=False)
        after_sweep = old()
        still_there = after_sweep is not None
        del after_sweep
        collect_garbage(51, is_pause=True)

    assert still_there
    assert old() is None

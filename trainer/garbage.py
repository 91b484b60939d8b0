"""Garbage collection out of the steps: Python looks for cycles when the loop pauses, not midway."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SWEEP_EVERY = 50


@contextmanager
def collection_by_hand() -> Iterator[None]:
    """Leave all that exists now out of the search for cycles, and let `sweep` alone search.

    A corpus is hundreds of thousands of objects; looking through them halts a step, and on a GPU
    that is waited for, every time. Where the program around it has left out its own objects
    already, that stays as it is.
    """
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()
    if not was_frozen:
        gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if not was_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()


def sweep(step: int, *, is_pause: bool) -> None:
    """Collect everything in a pause, and what is young every 50 steps: a cycle may hold tensors."""
    if is_pause:
        gc.collect()
    elif step % _SWEEP_EVERY == 0:
        gc.collect(1)

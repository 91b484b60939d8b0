"""Move Python's garbage collection out of the training steps, into the pauses between them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# Steps between two collections of young objects. Chosen by hand: often enough that tensors in a
# reference cycle do not pile up, rarely enough to cost nothing.
_COLLECT_EVERY = 50


@contextmanager
def manual_garbage_collection() -> Iterator[None]:
    """Freeze all objects that exist now and let only `sweep` search for reference cycles.

    A corpus is hundreds of thousands of objects. An automatic collection searches all of them in
    the middle of a step, and then the GPU waits. If the surrounding program has frozen objects
    already, they stay frozen.
    """
    was_enabled, was_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.collect()  # first, or garbage would be frozen too and never be freed
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


def collect_garbage(step: int, *, is_pause: bool) -> None:
    """Collect everything in a pause, and young objects every 50 steps."""
    # Generation 1 without the frozen corpus takes little time, and a cycle may hold GPU tensors.
    if is_pause:
        gc.collect()
    elif step % _COLLECT_EVERY == 0:
        gc.collect(1)

"""Ways to see that no number is brought from the device to the host."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_READING = ("aten._local_scalar_dense.default", "aten.equal.default", "aten.nonzero.default")


class NoReads(TorchDispatchMode):
    """Fails at the first operator that gives the host a number; it would wait for a GPU."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator if it leaves its result on the device."""
        assert str(func) not in _READING, f"{func} reads a number from the device"
        return func(*args, **kwargs or {})


@contextmanager
def copies_to_the_host() -> Iterator[list[str]]:
    """Collect the ways to values that pass no operator, in this thread: the loader's may."""
    called: list[str] = []
    main = threading.get_ident()

    def noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def note(self: Tensor, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == main:
                called.append(name)
            return original(self, *args, **kwargs)

        return note

    with pytest.MonkeyPatch.context() as patch:
        for name in ("tolist", "numpy", "__array__"):
            patch.setattr(Tensor, name, noting(name, getattr(Tensor, name)))
        yield called

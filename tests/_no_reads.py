"""A mode in which no operator may bring a number from the device to the host."""

from typing import Any

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

"""Live memory: which storages are alive while operators run, how many bytes at most; and FLOPs."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry


class LiveMemory(TorchDispatchMode):
    """Adds up the storages of all tensors that operators make, from birth to death.

    It works for tensors without contents as well as for real ones. What an operator takes and
    gives back inside itself is not seen. A storage counts once, however many views it has.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def note(self, value: Tensor) -> None:
        """Count the storage behind a tensor of any shape from now on."""
        if is_traceable_wrapper_subclass(value):
            names, _ = value.__tensor_flatten__()
            for name in names:
                self.note(getattr(value, name))
            return
        storage = value.untyped_storage()
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self._alive or num_bytes == 0:
            return

        def forget(_: Any) -> None:
            # The same place may be taken anew only after this ran.
            del self._alive[key]
            self.now_bytes -= num_bytes

        self._alive[key] = weakref.ref(storage, forget)
        self.now_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def restart_peak(self) -> None:
        """Forget the peak so far; what is alive stays counted."""
        self.peak_bytes = self.now_bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and count what it made."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.note(leaf)
        return result


class FlopCount(TorchDispatchMode):
    """Adds up the FLOPs of matrix products, convolutions and attention (counted in full).

    torch's own counter follows modules with hooks that keep the graph of a recomputed block alive,
    which would falsify the memory counted beside it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and count it."""
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


class MadeUpScalars(TorchDispatchMode):
    """Answers 1 where the host asks a tensor without contents for its one number."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator, or answer in its place."""
        if func is torch.ops.aten._local_scalar_dense.default:
            dtype = args[0].dtype
            return 1.0 if dtype.is_floating_point else True if dtype == torch.bool else 1
        return func(*args, **(kwargs or {}))

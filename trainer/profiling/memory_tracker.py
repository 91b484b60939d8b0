"""Track live tensor storages, their peak size in bytes, and FLOPs while operators run."""

import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

Operator: TypeAlias = Callable[..., object]
Arguments: TypeAlias = tuple[Any, ...]
Named: TypeAlias = dict[str, Any] | None
"""The arguments of an operator, as torch hands them to a dispatch mode."""


class MemoryTracker(TorchDispatchMode):
    """Sums the storages of all tensors that operators create, until they are freed.

    Works for fake tensors (no data) and real ones. Temporary memory that an operator allocates and
    frees internally is not counted. A storage counts once, however many views share it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, weakref.ref[object]] = {}

    def track(self, value: Tensor) -> None:
        """Start counting the storage behind a tensor of any shape."""
        # Subclasses such as quantized tensors own no storage; their inner tensors do.
        if is_traceable_wrapper_subclass(value):
            names, _ = value.__tensor_flatten__()
            for name in names:
                self.track(getattr(value, name))
            return
        storage = value.untyped_storage()
        key, num_bytes = storage._cdata, storage.nbytes()
        if key in self._alive or num_bytes == 0:
            return

        def forget(_: object) -> None:
            # The weak reference calls this before the allocator can reuse the address, so a new
            # storage with the same key is never mistaken for the old one.
            del self._alive[key]
            self.now_bytes -= num_bytes

        self._alive[key] = weakref.ref(storage, forget)
        self.now_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.now_bytes)

    def restart_peak(self) -> None:
        """Reset the peak to the bytes that are alive now."""
        self.peak_bytes = self.now_bytes

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Arguments = (), kwargs: Named = None
    ) -> object:
        """Run the operator and count the tensors it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.track(leaf)
        return result


class FlopCounter(TorchDispatchMode):
    """Sums the FLOPs of matrix products, convolutions and attention (without causal savings).

    torch's own FlopCounterMode is not used: its module hooks keep the graph of a checkpointed block
    alive, which would distort the memory that MemoryTracker counts at the same time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0.0

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Arguments = (), kwargs: Named = None
    ) -> object:
        """Run the operator and add its FLOPs."""
        result = func(*args, **(kwargs or {}))
        formula = flop_registry.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=result)
        return result


class FakeScalars(TorchDispatchMode):
    """Returns 1 when the host reads a scalar from a fake tensor, which has no data."""

    def __torch_dispatch__(
        self, func: Operator, types: object, args: Arguments = (), kwargs: Named = None
    ) -> object:
        """Run the operator, or answer a scalar read in its place."""
        # `.item()`, `bool(tensor)` and `float(tensor)` all dispatch to this operator.
        if func is torch.ops.aten._local_scalar_dense.default:
            dtype = args[0].dtype
            return 1.0 if dtype.is_floating_point else True if dtype == torch.bool else 1
        return func(*args, **(kwargs or {}))

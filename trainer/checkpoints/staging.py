"""Copy a training state into reused host memory, so that training doesn't wait for the disk."""

from typing import Any

import torch
from torch import Tensor, nn


class Staging:
    """Host buffers that are kept from save to save, because allocating costs more than copying.

    For a GPU they are pinned (page-locked), so the copies run asynchronously; `ready` returns an
    event that tells when they are done.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = self._is_locked = device.type == "cuda"
        self._buffers: dict[tuple[object, ...], Tensor] = {}

    def copy(self, value: Any, *path: object) -> Any:
        """Copy tensors of any shape, in nested containers, to the host.

        `path` names the buffer; the next copy with the same path overwrites this one.
        """
        if isinstance(value, Tensor):
            return self._copy_tensor(value.detach(), path)
        if isinstance(value, dict):
            return {key: self.copy(item, *path, key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.copy(item, *path, at) for at, item in enumerate(value))
        return value

    def ready(self) -> "torch.cuda.Event | None":
        """Return the event to wait for before reading the copies; None if they are done."""
        if not self._is_cuda:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def _copy_tensor(self, value: Tensor, path: tuple[object, ...]) -> Tensor:
        if type(value) not in (Tensor, nn.Parameter):
            # Tensor subclasses (quantized state) have their own layout and must copy themselves.
            return value.to("cpu", copy=True)
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = self._buffers[path] = self._make_buffer(value)
        return buffer.copy_(value, non_blocking=True)

    def _make_buffer(self, value: Tensor) -> Tensor:
        """Return host memory for a tensor of any shape, pinned as long as the system grants it."""
        if self._is_locked and value.is_cuda:
            try:
                return torch.empty_like(value, device="cpu", pin_memory=True)
            except RuntimeError:
                # Systems may limit pinned memory. Ordinary memory works too, only more slowly.
                self._is_locked = False
        return torch.empty_like(value, device="cpu")

"""Staging: host memory into which a state is copied, so that training need not wait for a disk."""

from typing import Any

import torch
from torch import Tensor, nn


class Staging:
    """Buffers kept from save to save: allocating them anew costs more than copying into them.

    For a GPU they are page-locked, so that the copy runs on the device while the host goes on;
    `ready` then tells when it is done.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = self._is_locked = device.type == "cuda"
        self._buffers: dict[tuple[Any, ...], Tensor] = {}

    def copy(self, value: Any, *path: Any) -> Any:
        """Return tensors of any shape, in nested containers, as copies on the host.

        `path` names the place; the next copy to the same place overwrites this one.
        """
        if isinstance(value, Tensor):
            return self._copy_tensor(value.detach(), path)
        if isinstance(value, dict):
            return {key: self.copy(item, *path, key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self.copy(item, *path, at) for at, item in enumerate(value))
        return value

    def ready(self) -> "torch.cuda.Event | None":
        """Return what to wait for before reading the copies; None where they are done already."""
        if not self._is_cuda:
            return None
        event = torch.cuda.Event()
        event.record()
        return event

    def _copy_tensor(self, value: Tensor, path: tuple[Any, ...]) -> Tensor:
        if type(value) not in (Tensor, nn.Parameter):
            # A tensor with a layout of its own (quantised state) knows best how to copy itself.
            return value.to("cpu", copy=True)
        buffer = self._buffers.get(path)
        if buffer is None or buffer.shape != value.shape or buffer.dtype != value.dtype:
            buffer = self._buffers[path] = self._make_buffer(value)
        return buffer.copy_(value, non_blocking=True)

    def _make_buffer(self, value: Tensor) -> Tensor:
        """Return host memory for a tensor of any shape, page-locked as long as there is such."""
        if self._is_locked and value.is_cuda:
            try:
                return torch.empty_like(value, device="cpu", pin_memory=True)
            except RuntimeError:
                # A system may grant little of it; the copies then take longer, no more.
                self._is_locked = False
        return torch.empty_like(value, device="cpu")

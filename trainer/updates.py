"""Updates: the optimizer steps only on a finite loss and finite gradients, else nothing changes.

The host does not wait to know: torch's fused kernels take the verdict from the device. Optimizers
that cannot are held back until the backward pass is done: one value is read a step.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainer.averaging import update_average
from trainer.setup import Setup

_SHORTAGES = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class UpdateLost(Exception):
    """Memory ran out inside the optimizer: some weights may be updated and others not."""


class KeptStatistics:
    """Running statistics of norms as they were before a step, which its forward passes change."""

    def __init__(self, model: nn.Module) -> None:
        self._live = [
            statistic
            for module in model.modules()
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
            for statistic in module.buffers(recurse=False)
        ]
        self._kept = [statistic.clone() for statistic in self._live]

    def put_back(self) -> None:
        """Undo what the forward passes did."""
        for live, kept in zip(self._live, self._kept, strict=True):
            live.copy_(kept)

    def put_back_unless(self, finite: Tensor) -> None:
        """Undo it where the verdict (a scalar, bool) is false; a GPU decides that by itself."""
        for live, kept in zip(self._live, self._kept, strict=True):
            live.copy_(torch.where(finite, live, kept))


@contextmanager
def kept_statistics(model: nn.Module) -> Iterator[KeptStatistics]:
    """Keep the running statistics of a model; put them back if the block raises."""
    kept = KeptStatistics(model)
    try:
        yield kept
    except BaseException:
        kept.put_back()
        raise


def is_finite(setup: Setup, losses: dict[str, Tensor], grad_norm: Tensor) -> Tensor:
    """Return on the device whether a step may be taken: a scalar, bool; losses are scalars."""
    return torch.isfinite(torch.stack([*losses.values(), grad_norm.to(setup.device)]).sum())


def spread_to_gradients(setup: Setup, losses: dict[str, Tensor]) -> None:
    """Let a loss that is no number spoil a gradient, which is all that a GradScaler looks at."""
    if not setup.precision.scaler.is_enabled():
        return
    spoiled = 0.0 * torch.stack(list(losses.values())).sum()
    for parameter in setup.model.parameters():
        if parameter.grad is not None:
            parameter.grad.add_(spoiled.to(parameter.grad.dtype))
            return


def update_weights(setup: Setup, step: int, finite: Tensor) -> None:
    """Step the optimizer, and the average with it, if `finite` (a scalar, bool) allows it.

    Raises:
        UpdateLost: memory ran out midway.
    """
    try:
        if setup.precision.scaler.is_enabled():
            setup.precision.scaler.step(setup.optimizer)
            setup.precision.scaler.update()
        elif getattr(setup.optimizer, "_step_supports_amp_scaling", False):
            _step_on_device(setup.optimizer, finite)
        elif finite:
            setup.optimizer.step()
        else:
            return
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise UpdateLost(str(error)) from None
        raise
    if setup.average is not None:
        decay = setup.config.training.ema_decay
        weights = setup.trained_weights()
        update_average(setup.average, weights, decay=decay, step=step, finite=finite)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device's or the host's memory ran out."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _SHORTAGES)


def _step_on_device(optimizer: Any, finite: Tensor) -> None:
    """Let a fused kernel leave everything as it is unless `finite` (a scalar, bool)."""
    optimizer.grad_scale, optimizer.found_inf = None, (~finite).float()
    try:
        optimizer.step()
    finally:
        del optimizer.grad_scale, optimizer.found_inf

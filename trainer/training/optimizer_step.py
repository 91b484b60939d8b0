"""Update the weights only if loss and gradients are finite; otherwise change nothing.

The host doesn't wait for the answer: torch's fused kernels read a flag on the device. For
optimizers without such kernels the host reads one value per step after the backward pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trainer.core.train_state import TrainState
from trainer.state.ema import update_average
from trainer.state.weights import trained_weights

# torch raises its own exception class only for CUDA's caching allocator; these are the messages of
# the CPU allocator, cuBLAS and cuDNN.
_OOM_MESSAGES = (
    "out of memory",
    "can't allocate memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class PartialUpdate(Exception):
    """Memory ran out inside the optimizer; some weights may be updated and others not."""


class SavedNormStats:
    """A copy of the running statistics of batch norms, which forward passes change."""

    def __init__(self, model: nn.Module) -> None:
        # Private, but the only base class that batch norms and instance norms share.
        self._live = [
            statistic
            for module in model.modules()
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats
            for statistic in module.buffers(recurse=False)
        ]
        self._kept = [statistic.clone() for statistic in self._live]

    def restore(self) -> None:
        """Restore the statistics."""
        for live, kept in zip(self._live, self._kept, strict=True):
            live.copy_(kept)

    def restore_unless(self, finite: Tensor) -> None:
        """Restore the statistics if `finite` (a scalar, bool) is false, decided on the device."""
        for live, kept in zip(self._live, self._kept, strict=True):
            live.copy_(torch.where(finite, live, kept))


@contextmanager
def saved_norm_stats(model: nn.Module) -> Iterator[SavedNormStats]:
    """Copy the running statistics of a model, and restore them if the block raises."""
    kept = SavedNormStats(model)
    try:
        yield kept
    except BaseException:
        kept.restore()
        raise


def is_finite(state: TrainState, losses: dict[str, Tensor], grad_norm: Tensor) -> Tensor:
    """Return whether losses (scalars) and gradient norm are finite: a scalar, bool, on the device.

    The sum is NaN or infinite if any of its terms is, so one check covers all of them.
    """
    return torch.isfinite(torch.stack([*losses.values(), grad_norm.to(state.device)]).sum())


def propagate_nan_to_gradients(state: TrainState, losses: dict[str, Tensor]) -> None:
    """Make a gradient NaN if a loss (a scalar) is not finite: GradScaler checks only gradients."""
    if not state.precision.scaler.is_enabled():
        return
    # 0 * NaN and 0 * inf are NaN; a finite loss adds exactly 0.
    spoiled = 0.0 * torch.stack(list(losses.values())).sum()
    for parameter in state.model.parameters():
        if parameter.grad is not None:
            # One gradient is enough: the scaler skips the whole step if any value is not finite.
            parameter.grad.add_(spoiled.to(parameter.grad.dtype))
            return


def update_weights(state: TrainState, step: int, finite: Tensor) -> None:
    """Step the optimizer and update the average, if `finite` (a scalar, bool) is true.

    Raises:
        PartialUpdate: memory ran out during the update.
    """
    try:
        if state.precision.scaler.is_enabled():
            state.precision.scaler.step(state.optimizer)
            state.precision.scaler.update()
        elif getattr(state.optimizer, "_step_supports_amp_scaling", False):
            _step_on_device(state.optimizer, finite)
        elif finite:
            state.optimizer.step()
        else:
            return
    # The step may have changed some weights already, so repeating it would apply it twice.
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise PartialUpdate(str(error)) from None
        raise
    if state.average is not None:
        decay = state.config.training.ema_decay
        weights = trained_weights(state)
        update_average(state.average, weights, decay=decay, step=step, finite=finite)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that the device or the host ran out of memory."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _OOM_MESSAGES)


def _step_on_device(optimizer: Any, finite: Tensor) -> None:
    """Step a fused optimizer, whose kernels change nothing unless `finite` (a scalar, bool).

    `grad_scale` and `found_inf` are the attributes through which torch's GradScaler does the same.
    """
    optimizer.grad_scale, optimizer.found_inf = None, (~finite).float()
    try:
        optimizer.step()
    finally:
        # As in GradScaler: a flag that stays behind could make a later step do nothing.
        del optimizer.grad_scale, optimizer.found_inf

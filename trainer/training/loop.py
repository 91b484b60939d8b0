"""The training loop: train() and train_step(), readable without opening another file."""

from functools import partial

import torch
from torch import Tensor

from trainer.callbacks.step_timer import BeginPart, untimed
from trainer.checkpoints.async_writer import CheckpointWriter
from trainer.core.events import Emit, Notice, ValidationDone
from trainer.core.metrics import GRAD_NORM
from trainer.core.train_state import TrainState
from trainer.state.seeding import seed_step
from trainer.training.distributed import sum_gradients, sum_values
from trainer.training.evaluate import make_previews, validate
from trainer.training.garbage_collection import collect_garbage, manual_garbage_collection
from trainer.training.metrics import StepMetrics
from trainer.training.oom_recovery import OomGuard
from trainer.training.optimizer_step import (
    is_finite,
    is_out_of_memory,
    propagate_nan_to_gradients,
    saved_norm_stats,
    update_weights,
)
from trainer.training.run_length import lr_factor
from trainer.training.triggers import Triggers, record_validation


def train(state: TrainState, emit: Emit) -> str:
    """Train until the last step or a stop request, reporting everything through `emit`.

    Returns:
        `finished` or `stopped`.
    """
    step_metrics = StepMetrics(state, emit)
    triggers = Triggers(state, emit)
    oom_guard = OomGuard(state, emit)
    with CheckpointWriter(state, emit) as writer, manual_garbage_collection():
        for step in triggers.steps():
            update = partial(train_step, state, step, step_metrics.begin_part)
            step_metrics.record(step, oom_guard.run(step, update))
            writer.report_finished()  # report checkpoints that were written in the background
            due = triggers.due_after(step)  # the same on every rank, read from rank 0
            if due:
                step_metrics.flush()  # the only host-device synchronization, and only when needed
            best = False
            if "validate" in due and (metrics := oom_guard.run(step, partial(validate, state))):
                best = record_validation(state, step, metrics)
                emit(ValidationDone(step, metrics))
            if "preview" in due and state.world.is_main:
                _emit_preview(state, step, emit)
            stops_early = triggers.should_stop_early()
            if stops_early:
                emit(Notice("info", "Stopped early: validation loss stopped improving.", "", step))
            stopping = "stop" in due or stops_early
            is_last = stopping or step == state.last_step
            # Skip checkpoints while updates are being skipped (NaN), except the last one.
            if state.world.is_main and (
                is_last or (best or "save" in due) and step_metrics.is_last_step_applied
            ):
                writer.save(step, best=best, wait=is_last)
            if stopping:
                return "stopped" if "stop" in due else "finished"
            collect_garbage(step, is_pause=bool(due))
            if due:
                triggers.mark_done(due)
                step_metrics.restart_timer()
    return "finished"


def train_step(state: TrainState, step: int, begin: BeginPart = untimed) -> dict[str, Tensor]:
    """Do one optimizer update over the micro-batches of a step.

    If the loss or gradients are NaN or infinite, the weights stay unchanged. `begin` is called with
    the name of each part of the step as it begins, for timing.

    Returns:
        Loss terms and the metric GRAD_NORM, scalars that stay on the device.
    """
    seed_step(state, step)
    lr = state.base_lr * state.adapted.rate * lr_factor(state, step)
    for group in state.optimizer.param_groups:
        group["lr"] = lr
    state.optimizer.zero_grad(set_to_none=True)
    losses: dict[str, Tensor] = {}
    begin("data")
    with saved_norm_stats(state.model) as statistics:
        for host_batch in state.train_batches.micro_batches(step):
            batch = host_batch.to(state.device)
            begin("forward")
            with state.precision.autocast(state.device):
                parts = state.family.losses(state.model, batch)
            # Losses are divided by the totals of the whole step, so micro-steps simply add up.
            loss = torch.stack(list(parts.values())).sum()
            begin("backward")
            state.precision.scaler.scale(loss).backward()
            begin("data")
            for name, value in parts.items():
                losses[name] = losses[name] + value.detach() if name in losses else value.detach()
    begin("update")
    sum_gradients(state.model, state.world)
    losses = sum_values(losses, state.world)
    propagate_nan_to_gradients(state, losses)
    state.precision.scaler.unscale_(state.optimizer)
    clip_norm = state.config.training.clip_norm or float("inf")
    grad_norm = torch.nn.utils.clip_grad_norm_(state.model.parameters(), clip_norm).detach()
    finite = is_finite(state, losses, grad_norm)
    statistics.restore_unless(finite)
    update_weights(state, step, finite)
    return losses | {GRAD_NORM: grad_norm}


def _emit_preview(state: TrainState, step: int, emit: Emit) -> None:
    try:
        for event in make_previews(state, step):
            emit(event)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        remedy = "Training continues. Use a shorter preview sentence in the next run."
        emit(Notice("warning", "No preview was made: out of memory.", remedy, step))

"""The training loop: train() and train_step(), readable without opening another file."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from trainer.checkpoints.async_writer import CheckpointWriter
from trainer.core.events import Event, Notice, ValidationDone
from trainer.core.train_state import Setup
from trainer.training.distributed import sum_gradients, sum_values
from trainer.training.evaluate import make_previews, validate
from trainer.training.garbage_collection import collection_by_hand, sweep
from trainer.training.metrics import Meter
from trainer.training.oom_recovery import OomGuard
from trainer.training.optimizer_step import (
    is_finite,
    is_out_of_memory,
    propagate_nan_to_gradients,
    saved_norm_stats,
    update_weights,
)
from trainer.training.triggers import Timetable, note_validation

Emit = Callable[[Event], None]


def train(setup: Setup, emit: Emit) -> str:
    """Train until the last step or a stop request, reporting everything through `emit`.

    Returns:
        `finished` or `stopped`.
    """
    meter = Meter(setup, emit)
    timetable = Timetable(setup, emit)
    fitting = OomGuard(setup, emit)
    with CheckpointWriter(setup, emit) as writer, collection_by_hand():
        for step in timetable.steps():
            meter.step_done(step, fitting.run(step, partial(train_step, setup, step)))
            writer.tell()  # report checkpoints that were written in the background
            due = timetable.due_after(step)  # the same on every rank, read from rank 0
            if due:
                meter.finish()  # the only host-device synchronization, and only when needed
            best = False
            if "validate" in due and (metrics := fitting.run(step, partial(validate, setup))):
                best = note_validation(setup, step, metrics)
                emit(ValidationDone(step, metrics))
            if "preview" in due and setup.world.is_main:
                _emit_preview(setup, step, emit)
            is_out_of_patience = timetable.is_out_of_patience()
            if is_out_of_patience:
                emit(Notice("info", "Stopped early: validation loss stopped improving.", "", step))
            stopping = "stop" in due or is_out_of_patience
            is_last = stopping or step == setup.last_step
            # Skip checkpoints while updates are being skipped (NaN), except the last one.
            if setup.world.is_main and (is_last or (best or "save" in due) and meter.is_sound):
                writer.save(step, best=best, wait=is_last)
            if stopping:
                return "stopped" if "stop" in due else "finished"
            sweep(step, is_pause=bool(due))
            if due:
                timetable.done(due)
                meter.restart()
    return "finished"


def train_step(setup: Setup, step: int) -> dict[str, Tensor]:
    """Do one optimizer update over the micro-batches of a step.

    If the loss or gradients are NaN or infinite, the weights stay unchanged.

    Returns:
        Loss terms and `grad_norm`, scalars that stay on the device.
    """
    seed_step(setup, step)
    lr = setup.base_lr * setup.adapted.rate * setup.lr_factor(step)
    for group in setup.optimizer.param_groups:
        group["lr"] = lr
    setup.optimizer.zero_grad(set_to_none=True)
    losses: dict[str, Tensor] = {}
    setup.enter("data")
    with saved_norm_stats(setup.model) as statistics:
        for host_batch in setup.train_batches.micro_batches(step):
            batch = host_batch.to(setup.device)
            setup.enter("forward")
            with setup.precision.autocast(setup.device):
                parts = setup.family.losses(setup.model, batch)
            # Losses are divided by the totals of the whole step, so micro-steps simply add up.
            loss = torch.stack(list(parts.values())).sum()
            setup.enter("backward")
            setup.precision.scaler.scale(loss).backward()
            setup.enter("data")
            for name, value in parts.items():
                losses[name] = losses[name] + value.detach() if name in losses else value.detach()
    setup.enter("update")
    sum_gradients(setup.model, setup.world)
    losses = sum_values(losses, setup.world)
    propagate_nan_to_gradients(setup, losses)
    setup.precision.scaler.unscale_(setup.optimizer)
    clip_norm = setup.config.training.clip_norm or float("inf")
    grad_norm = torch.nn.utils.clip_grad_norm_(setup.model.parameters(), clip_norm).detach()
    finite = is_finite(setup, losses, grad_norm)
    statistics.restore_unless(finite)
    update_weights(setup, step, finite)
    return losses | {"grad_norm": grad_norm}


def seed_step(setup: Setup, step: int) -> None:
    """Make dropout a function of seed, step and rank, so that a resume repeats it exactly."""
    training, world = setup.config.training, setup.world
    # The number of ranks may have grown since the run was configured. The stride covers all of
    # them, so no rank reuses a seed of another step.
    most = max(training.num_processes, world.size)
    # 1,000,003 is a prime beyond any usual step count: runs with neighboring seeds don't overlap.
    torch.manual_seed(((training.seed * 1_000_003 + step) * most + world.rank) % 2**64)


def _emit_preview(setup: Setup, step: int, emit: Emit) -> None:
    try:
        for event in make_previews(setup, step):
            emit(event)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        remedy = "Training continues. Use a shorter preview sentence in the next run."
        emit(Notice("warning", "No preview was made: out of memory.", remedy, step))

"""The loop: train() and train_step(); a reader who knows PyTorch needs no other file."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from trainer.adapting import Fitting
from trainer.distributed import sum_gradients, sum_values
from trainer.evaluate import make_previews, validate
from trainer.events import Event, Notice, ValidationDone
from trainer.garbage import collection_by_hand, sweep
from trainer.meter import Meter
from trainer.setup import Setup
from trainer.timetable import Timetable, note_validation
from trainer.updates import (
    is_finite,
    is_out_of_memory,
    kept_statistics,
    spread_to_gradients,
    update_weights,
)
from trainer.writer import CheckpointWriter

Emit = Callable[[Event], None]


def train(setup: Setup, emit: Emit) -> str:
    """Train until the last step or a stop request; every fact leaves through `emit`.

    Returns:
        `finished` or `stopped`.
    """
    meter = Meter(setup, emit)
    timetable = Timetable(setup, emit)
    fitting = Fitting(setup, emit)
    with CheckpointWriter(setup, emit) as writer, collection_by_hand():
        for step in timetable.steps():
            meter.step_done(step, fitting.do(step, partial(train_step, setup, step)))
            writer.tell()
            due = timetable.due_after(step)
            if due:
                meter.finish()
            best = False
            if "validate" in due and (metrics := fitting.do(step, partial(validate, setup))):
                best = note_validation(setup, step, metrics)
                emit(ValidationDone(step, metrics))
            if "preview" in due and setup.world.is_main:
                _emit_preview(setup, step, emit)
            is_out_of_patience = timetable.is_out_of_patience()
            if is_out_of_patience:
                emit(Notice("info", "Stopped early: validation no longer improves.", "", step))
            stopping = "stop" in due or is_out_of_patience
            is_last = stopping or step == setup.last_step
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
    """Do one optimizer update over the micro-batches of a step; metrics stay on the device.

    Where loss or gradients are not finite, nothing is updated.
    """
    seed_step(setup, step)
    lr = setup.base_lr * setup.adapted.rate * setup.lr_factor(step)
    for group in setup.optimizer.param_groups:
        group["lr"] = lr
    setup.optimizer.zero_grad(set_to_none=True)
    losses: dict[str, Tensor] = {}
    setup.enter("data")
    with kept_statistics(setup.model) as statistics:
        for host_batch in setup.train_batches.of_step(step):
            batch = host_batch.to(setup.device)
            setup.enter("forward")
            with setup.precision.autocast(setup.device):
                parts = setup.family.losses(setup.model, batch)
            loss = torch.stack(list(parts.values())).sum()
            setup.enter("backward")
            setup.precision.scaler.scale(loss).backward()
            setup.enter("data")
            for name, value in parts.items():
                losses[name] = losses[name] + value.detach() if name in losses else value.detach()
    setup.enter("update")
    sum_gradients(setup.model, setup.world)
    losses = sum_values(losses, setup.world)
    spread_to_gradients(setup, losses)
    setup.precision.scaler.unscale_(setup.optimizer)
    clip_norm = setup.config.training.clip_norm or float("inf")
    grad_norm = torch.nn.utils.clip_grad_norm_(setup.model.parameters(), clip_norm).detach()
    finite = is_finite(setup, losses, grad_norm)
    statistics.put_back_unless(finite)
    update_weights(setup, step, finite)
    return losses | {"grad_norm": grad_norm}


def seed_step(setup: Setup, step: int) -> None:
    """Make dropout a function of seed, step and rank, so that a resume repeats it exactly.

    A run may have grown since it was configured; its ranks must not draw what others draw later.
    """
    training, world = setup.config.training, setup.world
    most = max(training.num_processes, world.size)
    torch.manual_seed(((training.seed * 1_000_003 + step) * most + world.rank) % 2**64)


def _emit_preview(setup: Setup, step: int, emit: Emit) -> None:
    try:
        for event in make_previews(setup, step):
            emit(event)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        remedy = "Choose a shorter preview sentence for the next run. Training goes on."
        emit(Notice("warning", "No preview was made: memory ran out.", remedy, step))

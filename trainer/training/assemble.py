"""Build a run's `TrainState`: load model and data, apply optimizations, restore a checkpoint."""

from dataclasses import replace
from pathlib import Path

import torch

from trainer.checkpoints.checkpoint import (
    clean_leftovers,
    newest_checkpoint,
    quarantine_damaged,
    restore_checkpoint,
    saved_scope,
)
from trainer.checkpoints.compatibility import (
    compare_scopes,
    describe_scope,
    needs_fresh_optimizer,
    refuse_differences,
    report_differences,
)
from trainer.config.resolve import Entries, count_steps, find_base_lr, resolve
from trainer.core.device import Device
from trainer.core.events import Emit, Notice, PhaseChanged
from trainer.core.options import describe
from trainer.core.run_config import RunConfig
from trainer.core.train_state import Cadence, TrainState, World
from trainer.data.features.dataset import Dataset, make_batches, prepare_dataset
from trainer.optimizers._core.build import build_optimizer
from trainer.state.cadence import find_cadence
from trainer.state.description import describe_start
from trainer.state.ema import start_average
from trainer.state.seeding import seed_everything
from trainer.training.device import choose_device, take_device, warn_unseen_gpu
from trainer.training.distributed import main_first
from trainer.training.preflight import check_before_start, refuse_unavailable

__all__ = [
    "assemble",
    "build_train_state",
    "check_before_start",
    "choose_device",
    "describe_start",
    "seed_everything",
    "take_device",
]


def assemble(folder: Path, config: RunConfig, *, world: World, emit: Emit) -> TrainState:
    """Build the TrainState of a run folder, restored from its latest checkpoint if it has one.

    Raises:
        TimbreError: anything that the user can fix, as a sentence.
    """
    # 1. Names to entries, and a device that can do what they ask for.
    entries = resolve(config)
    machine = take_device(config.training.device, world.local_rank)
    warn_unseen_gpu(config.training.device, machine, emit)
    refuse_unavailable(entries, machine)
    # 2. Seeds, before the model is built: random initial weights are the same on every rank.
    seed_everything(config.training.seed)
    # 3. Clips to features. Rank 0 fills the cache; the other ranks then read from it.
    _report_licence_terms(config, entries, emit)
    _report_retired_options(entries, emit)
    family, options = entries.family, entries.family_options
    dataset = main_first(world, lambda: prepare_dataset(folder, config, family, options, emit))
    # 4. The model, with its base weights.
    model = _load_model(config, entries, dataset, machine, emit)
    # 5. Batches, optimizer and schedule.
    state = build_train_state(
        folder, config, entries, dataset, model=model, machine=machine, world=world
    )
    # 6. Optimizations. `resolve` sorted them by stage: precision before compile, for example.
    for optimization, options in entries.optimizations:
        optimization.apply(state, options)
    # 7. The latest checkpoint.
    _restore_latest(state, emit)
    # 8. What depends on how many steps remain.
    for optimization, options in entries.optimizations:
        if optimization.finalize is not None:
            optimization.finalize(state, options, emit)
    return state


def _report_licence_terms(config: RunConfig, entries: Entries, emit: Emit) -> None:
    """Report the licences of the weights that the run uses."""
    if entries.family.terms is None:
        return
    emit(PhaseChanged("Reading the base checkpoint"))
    terms = entries.family.terms(_base(config), entries.family_options)
    if terms:
        emit(Notice("info", terms))


def _report_retired_options(entries: Entries, emit: Emit) -> None:
    """Report options of the optimizer that an older version stored and that have no effect now."""
    for info in describe(entries.optimizer.options):
        if info.retired and getattr(entries.optimizer_options, info.name) != info.default:
            label = entries.optimizer.label
            emit(Notice("info", f"{label} ignores the option {info.label}: {info.help}"))


def _load_model(
    config: RunConfig, entries: Entries, dataset: Dataset, machine: Device, emit: Emit
) -> torch.nn.Module:
    emit(PhaseChanged("Loading the model"))
    family = entries.family
    model = family.load(_base(config), entries.family_options, dataset.corpus.facts)
    model = model.to(torch.device(machine.torch_name))
    silence = family.silent(model) if family.silent is not None else ""
    if silence:
        emit(Notice("info", silence))
    return model


def _base(config: RunConfig) -> Path | None:
    return Path(config.base) if config.base else None


def _restore_latest(state: TrainState, emit: Emit) -> None:
    """Restore the latest intact checkpoint, if there is one, and set aside damaged ones."""
    saved = state.folder / "checkpoints"
    if state.world.is_main:
        clean_leftovers(saved)
    # Only one process may rename folders; the other ranks look after it has finished.
    find_newest = quarantine_damaged if state.world.is_main else newest_checkpoint
    checkpoint, complaints = main_first(state.world, lambda: find_newest(saved))
    for complaint in complaints:
        emit(Notice("warning", complaint))
    if checkpoint is not None:
        _restore(state, checkpoint, emit)


def _restore(state: TrainState, checkpoint: Path, emit: Emit) -> None:
    """Restore a checkpoint and report what changed since it was saved.

    Raises:
        ConfigError: something changed that a resume cannot allow.
    """
    differences = compare_scopes(saved_scope(checkpoint), describe_scope(state))
    refuse_differences(differences)
    fresh_optimizer = needs_fresh_optimizer(differences)
    step = restore_checkpoint(state, checkpoint, fresh_optimizer=fresh_optimizer)
    state.first_step = step + 1
    for notice in report_differences(differences, step):
        emit(notice)


def build_train_state(
    folder: Path,
    config: RunConfig,
    entries: Entries,
    dataset: Dataset,
    *,
    model: torch.nn.Module,
    machine: Device,
    world: World,
) -> TrainState:
    """Return the TrainState of a model and its clips, without any optimization applied."""
    training, family = config.training, entries.family
    device = torch.device(machine.torch_name)
    model.train()
    # Page-locked host memory lets copies to the GPU overlap with computation.
    pin_memory = device.type == "cuda"
    train, val = make_batches(dataset, config, family, world, pin_memory=pin_memory)
    last_step = count_steps(config, train.steps_per_epoch)
    spec, base_lr = entries.optimizer, find_base_lr(entries)
    # With the resolved rate, because the option may be empty ("the usual one").
    optimizer_options = replace(entries.optimizer_options, lr=base_lr)
    rhythm = {"last_step": last_step, "steps_per_epoch": train.steps_per_epoch}
    spoken = (dataset.val or dataset.train)[0]  # a text the model was not trained on, if any
    return TrainState(
        config=config,
        folder=folder,
        machine=machine,
        device=device,
        family=family,
        model=model,
        corpus=dataset.corpus,
        data_hash=dataset.fingerprint,
        optimizer=build_optimizer(spec, optimizer_options, model, device),
        optimizer_spec=spec,
        optimizer_options=optimizer_options,
        base_lr=base_lr,
        schedule=entries.schedule,
        schedule_options=entries.schedule_options,
        planned_steps=last_step,
        train_batches=train,
        val_batches=val,
        first_step=1,
        last_step=last_step,
        world=world,
        average=start_average(model) if training.ema_decay > 0 else None,
        validate_every=find_cadence(training.validate_every, auto=10, **rhythm),
        save_every=find_cadence(training.save_every, auto=10, **rhythm),
        # Never, if the family can neither speak nor draw anything yet.
        preview_every=Cadence()
        if family.silent is not None and family.silent(model) and family.illustrate is None
        else find_cadence(training.preview_every, auto=5, **rhythm),
        preview_text=training.preview_text or spoken.text,
        preview_speaker=training.preview_speaker or spoken.speaker,
    )

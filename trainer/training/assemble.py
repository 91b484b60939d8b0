"""Build a run's `TrainState`: load model and data, apply optimizations, restore a checkpoint."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
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
from trainer.config.resolve import (
    Entries,
    count_steps,
    find_base_lr,
    find_schedule,
    mismatches,
    missing_files,
    resolve,
)
from trainer.core.device import GIB, MIB, Device, describe_cpu, list_devices
from trainer.core.errors import ConfigError
from trainer.core.events import Emit, Notice, PhaseChanged, RunStarted
from trainer.core.options import describe
from trainer.core.registry import discover
from trainer.core.run_config import RunConfig, parse_interval
from trainer.core.specs import Optimization
from trainer.core.train_state import Cadence, Probe, TrainState, World
from trainer.data.features.dataset import Dataset, make_batches, prepare_dataset
from trainer.optimizers._core.build import build_optimizer
from trainer.state.ema import start_average
from trainer.training.distributed import main_first


def choose_device(wanted: str, local_rank: int = 0) -> Device:
    """Return the device that `auto`, `cpu`, `cuda` or `cuda:1` names on this machine.

    Raises:
        ConfigError: there is no such device.
    """
    gpus = _torch_gpus()
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return describe_cpu()
    names = {"auto": local_rank, "cuda": local_rank}
    names |= {gpu.torch_name: gpu.index for gpu in gpus}
    index = names.get(wanted, -1)
    if not 0 <= index < len(gpus):
        known = ", ".join(["auto", "cpu", *(gpu.torch_name for gpu in gpus)])
        why = "" if gpus else " torch does not see a GPU."
        raise ConfigError(f"This machine has no device '{wanted}'.{why} Use one of: {known}.")
    return gpus[index]


def take_device(wanted: str, local_rank: int = 0) -> Device:
    """Like `choose_device`, and make a GPU torch's current one in this process.

    CUDA events and calls without a device use the current GPU, whichever GPU the tensors are on.
    """
    machine = choose_device(wanted, local_rank)
    if machine.kind == "cuda":
        torch.cuda.set_device(machine.index)
    return machine


def assemble(folder: Path, config: RunConfig, *, world: World, emit: Emit) -> TrainState:
    """Build the TrainState of a run folder, restored from its latest checkpoint if it has one.

    Raises:
        TimbreError: anything that the user can fix, as a sentence.
    """
    entries = resolve(config)
    machine = take_device(config.training.device, world.local_rank)
    _warn_unseen_gpu(config.training.device, machine, emit)
    _refuse_unavailable(entries, machine)
    # Before the model is built: random initial weights are the same on every rank.
    seed_everything(config.training.seed)
    family, options = entries.family, entries.family_options
    _report_licence_terms(config, entries, emit)
    _report_retired_options(entries, emit)
    # Rank 0 computes and caches the features; the other ranks then read them from the cache.
    dataset = main_first(world, lambda: prepare_dataset(folder, config, family, options, emit))
    emit(PhaseChanged("Loading the model"))
    base = Path(config.base) if config.base else None
    model = family.load(base, options, dataset.corpus.facts)
    model = model.to(torch.device(machine.torch_name))
    silence = family.silent(model) if family.silent is not None else ""
    if silence:
        emit(Notice("info", silence))
    train_state = build_train_state(
        folder, config, entries, dataset, model=model, machine=machine, world=world
    )
    # `resolve` sorted them by stage: precision before compile, for example.
    for optimization, options in entries.optimizations:
        optimization.apply(train_state, options)
    saved = folder / "checkpoints"
    if world.is_main:
        clean_leftovers(saved)
    # Only one process may rename folders; the other ranks look after it has finished.
    find_newest = quarantine_damaged if world.is_main else newest_checkpoint
    checkpoint, complaints = main_first(world, lambda: find_newest(saved))
    for complaint in complaints:
        emit(Notice("warning", complaint))
    if checkpoint is not None:
        _restore(train_state, checkpoint, emit)
    # After restoring: some of these depend on how many steps remain.
    for optimization, options in entries.optimizations:
        if optimization.finalize is not None:
            optimization.finalize(train_state, options, emit)
    return train_state


def _restore(train_state: TrainState, checkpoint: Path, emit: Emit) -> None:
    """Restore a checkpoint and report what changed since it was saved.

    Raises:
        ConfigError: something changed that a resume cannot allow.
    """
    differences = compare_scopes(saved_scope(checkpoint), describe_scope(train_state))
    refuse_differences(differences)
    fresh_optimizer = needs_fresh_optimizer(differences)
    step = restore_checkpoint(train_state, checkpoint, fresh_optimizer=fresh_optimizer)
    train_state.first_step = step + 1
    for notice in report_differences(differences, step):
        emit(notice)


def _warn_unseen_gpu(wanted: str, machine: Device, emit: Emit) -> None:
    """Warn if the driver reports a GPU that torch does not see, because the run will be slow."""
    if wanted != "auto" or machine.kind == "cuda":
        return
    gpus = [device for device in list_devices() if device.kind == "cuda"]
    if not gpus:
        return
    text = f"This run uses the CPU: torch {torch.__version__} does not see the {gpus[0].name}."
    built = "was built without CUDA; install a CUDA build (pytorch.org shows the command)"
    asks = "needs a newer driver, or CUDA_VISIBLE_DEVICES hides the GPU"
    remedy = f"This torch {asks if torch.version.cuda else built}."
    emit(Notice("warning", text, remedy))


def _report_licence_terms(config: RunConfig, entries: Entries, emit: Emit) -> None:
    """Report the licences of the weights that the run uses."""
    if entries.family.terms is None:
        return
    emit(PhaseChanged("Reading the base checkpoint"))
    base = Path(config.base) if config.base else None
    terms = entries.family.terms(base, entries.family_options)
    if terms:
        emit(Notice("info", terms))


def _report_retired_options(entries: Entries, emit: Emit) -> None:
    """Report options of the optimizer that an older version stored and that have no effect now."""
    for info in describe(entries.optimizer.options):
        if info.retired and getattr(entries.optimizer_options, info.name) != info.default:
            label = entries.optimizer.label
            emit(Notice("info", f"{label} ignores the option {info.label}: {info.help}"))


def check_before_start(config: RunConfig) -> None:
    """Check names, device and files before a run folder is created.

    Raises:
        ConfigError: lists every problem found.
    """
    entries = resolve(config)
    _refuse_unavailable(entries, choose_device(config.training.device))
    absent = missing_files(config)
    if absent:
        raise ConfigError(absent)


def describe_start(train_state: TrainState, shown: Probe) -> RunStarted:
    """Describe the run that is about to start, with what a probed pass showed to be really on."""
    entries = resolve(train_state.config)
    # All optimizations, not only those asked for: torch may use a fused kernel by itself.
    states: dict[str, dict[str, object]] = {}
    # Asked for and really on are two things, so both are recorded.
    asked = {optimization.name for optimization, _ in entries.optimizations}
    for name, optimization in discover("trainer.optimizations", Optimization).items():
        state = optimization.status(train_state, shown)
        states[name] = {"on": state.on, "detail": state.detail, "asked": name in asked}
    facts = {
        "device": train_state.machine.name,
        "device_kind": train_state.machine.kind,
        "memory_total_gib": train_state.machine.memory_gib,
        "family": train_state.family.label,
        "parameters": sum(value.numel() for value in train_state.model.parameters()),
        "optimizer": train_state.optimizer_spec.label,
        "schedule": find_schedule(train_state.config.schedule.name).label,
        "lr": train_state.base_lr,
        "train_clips": train_state.train_batches.num_clips,
        "val_clips": train_state.val_batches.num_clips if train_state.val_batches else 0,
        "effective_batch_size": _clips_a_step(train_state),
        "saved_activations_mib": round(shown.saved_bytes / MIB, 1),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "speakers": [speaker["name"] for speaker in train_state.corpus.facts["speakers"]],
    }
    return RunStarted(
        train_state.first_step,
        train_state.last_step,
        train_state.train_batches.steps_per_epoch,
        facts,
        states,
    )


def _clips_a_step(train_state: TrainState) -> int:
    """Return the clips per step; with a token budget their mean, because it varies by step."""
    training = train_state.config.training
    if training.max_positions:
        batches = train_state.train_batches
        return max(1, round(batches.num_clips / batches.steps_per_epoch))
    # The configured number of processes, not the current one: a run may resume on fewer GPUs, and
    # its steps still hold the same clips.
    return training.batch_size * training.accumulate * training.num_processes


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python."""
    # The widest seeds that torch (64 bits) and numpy (32 bits) accept.
    torch.manual_seed(seed % 2**64)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def find_cadence(text: str, *, last_step: int, steps_per_epoch: int, auto: int) -> Cadence:
    """Convert an interval such as '2 epochs' into steps or minutes.

    'auto' divides the run into `auto` intervals of equal length.
    """
    interval = parse_interval(text)
    if interval is None:
        return Cadence() if text.strip().lower() == "never" else Cadence(max(1, last_step // auto))
    if interval.unit == "minutes":
        return Cadence(minutes=interval.amount)
    factor = steps_per_epoch if interval.unit == "epochs" else 1
    return Cadence(max(1, round(interval.amount * factor)))


def _torch_gpus() -> list[Device]:
    """List the GPUs in torch's numbering, which CUDA_VISIBLE_DEVICES may change."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = []
    for index in range(count):
        facts = torch.cuda.get_device_properties(index)
        memory_gib, capability = facts.total_memory / GIB, (facts.major, facts.minor)
        gpus.append(Device("cuda", index, facts.name, memory_gib, capability, str(facts.uuid)))
    return gpus


def _refuse_unavailable(entries: Entries, machine: Device) -> None:
    problems: list[str] = []
    for optimization, options in entries.optimizations:
        reason = optimization.unavailable(machine)
        if reason is None and optimization.refuse is not None:
            reason = optimization.refuse(machine, options)
        if reason is not None:
            problems.append(f"{optimization.label} is not available here: {reason}")
    problems += mismatches(entries)
    if problems:
        raise ConfigError(problems)


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

"""Check before the first step that a run can work: its names, files, device, disk and memory.

Of disk and memory only what is certain is counted: weights, gradients, optimizer state and
checkpoints. `python -m trainer estimate` predicts activations too; running out of memory for those
is handled during training.
"""

from pathlib import Path

import psutil

from trainer.config.resolve import Entries, mismatches, missing_files, resolve
from trainer.core.device import GIB, Device, free_disk_gib
from trainer.core.errors import ConfigError, RunError
from trainer.core.run_config import RunConfig
from trainer.core.train_state import TrainState
from trainer.state.weights import has_other_weights
from trainer.training.device import choose_device

_MARGIN = 1.1  # chosen by hand: logs, previews and other programs need some disk space too
_OVERRIDE = "To try anyway, untick 'Check for room' (--no-check-room)."


class InsufficientResources(RunError):
    """The disk or the memory is too small for the run at any batch size."""

    exit_code = 20


def check_before_start(config: RunConfig) -> None:
    """Check names, device and files before a run folder is created.

    Raises:
        ConfigError: lists every problem found.
    """
    entries = resolve(config)
    refuse_unavailable(entries, choose_device(config.training.device))
    absent = missing_files(config)
    if absent:
        raise ConfigError(absent)


def refuse_unavailable(entries: Entries, machine: Device) -> None:
    """Refuse optimizations that a device lacks, and entries that cannot be combined.

    Raises:
        ConfigError: lists every problem found.
    """
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


def check_resources(state: TrainState) -> None:
    """Check disk and memory for an assembled run, unless its options disable the check.

    Raises:
        InsufficientResources: there is certainly too little; the message says how much is needed
            and available.
    """
    if not state.config.training.check_room:
        return
    problems = [_disk_problem(state), _memory_problem(state)]
    found = [problem for problem in problems if problem]
    if found:
        raise InsufficientResources(" ".join([*found, _OVERRIDE]))


def checkpoint_bytes(state: TrainState) -> int:
    """Return the size of the latest checkpoint, or an estimate if there is none yet."""
    saved = sorted((state.folder / "checkpoints").glob("step-*"))
    if saved:
        return _folder_bytes(saved[-1])
    twice = 2 if has_other_weights(state) else 1
    average = sum(value.nbytes for value in (state.average or {}).values())
    weights = [*state.model.state_dict().values()]
    trained = [value for value in state.model.parameters() if value.requires_grad]
    # Files hold fp32 weights (4 bytes each), whatever precision the model trains in.
    whole, changing = (sum(4 * value.numel() for value in values) for values in (weights, trained))
    return whole + (twice - 1) * changing + _state_bytes(state) + average


def _disk_problem(state: TrainState) -> str:
    size, every = checkpoint_bytes(state), state.save_every.steps
    # The latest `keep_last`, the best one, and the one being written.
    count = state.config.training.keep_last + 2
    if every is not None:
        # A short run writes fewer checkpoints than it may keep.
        count = min(count, -(-state.last_step // every) + 1)
    kept = sum(map(_folder_bytes, (state.folder / "checkpoints").glob("step-*")))
    needed_gib = max(0.0, count * size * _MARGIN - kept) / GIB
    free_gib = free_disk_gib(state.folder)
    if free_gib >= needed_gib:
        return ""
    return (
        f"The disk that holds {state.folder} has {free_gib:.2f} GiB free, but this run needs "
        f"{needed_gib:.2f} GiB: {count} checkpoints of {size / GIB:.2f} GiB plus 10 %. "
        f"Free {needed_gib - free_gib:.2f} GiB or keep fewer checkpoints."
    )


def _memory_problem(state: TrainState) -> str:
    average = sum(value.nbytes for value in (state.average or {}).values())
    parts = {
        "weights": _weights_bytes(state),
        "masters": sum(value.nbytes for value in state.master_weights.values()),
        "gradients": _trained_bytes(state),
        "optimizer": _state_bytes(state),
        "average": average,
    }
    needed_gib = sum(parts.values()) / GIB
    is_gpu = state.device.type == "cuda"
    # All memory, not what is free: other programs may exit before it is needed.
    total_gib = state.machine.memory_gib if is_gpu else psutil.virtual_memory().total / GIB
    if needed_gib <= total_gib:
        return ""
    listed = ", ".join(f"{name} {value / GIB:.2f}" for name, value in parts.items() if value)
    return (
        f"{state.machine.name} has {total_gib:.2f} GiB of memory, but this run needs "
        f"{needed_gib:.2f} GiB before the first clip ({listed}). Tick LoRA, choose an optimizer "
        "with less state, or choose a smaller model."
    )


def _weights_bytes(state: TrainState) -> int:
    return sum(value.nbytes for value in state.model.state_dict().values())


def _trained_bytes(state: TrainState) -> int:
    return sum(value.nbytes for value in state.model.parameters() if value.requires_grad)


def _state_bytes(state: TrainState) -> int:
    trained = sum(value.numel() for value in state.model.parameters() if value.requires_grad)
    return round(trained * state.optimizer_spec.state_bytes)


def _folder_bytes(folder: Path) -> int:
    """Return the size of a folder in bytes without hard-linked files, which take no space."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return sum(facts.st_size for facts in files if facts.st_nlink == 1)

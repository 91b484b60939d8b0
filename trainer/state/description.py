"""Describe a run that is about to start: its facts, and which optimizations are really on."""

import torch

from trainer.core.device import MIB
from trainer.core.events import RunStarted
from trainer.core.registry import discover
from trainer.core.specs import Optimization
from trainer.core.train_state import Probe, TrainState


def describe_start(state: TrainState, shown: Probe) -> RunStarted:
    """Describe the run that is about to start, with what a probed pass showed to be really on."""
    # All optimizations, not only those asked for: torch may use a fused kernel by itself.
    states: dict[str, dict[str, object]] = {}
    # Asked for and really on are two things, so both are recorded.
    asked = state.config.optimizations
    for name, optimization in discover("trainer.optimizations", Optimization).items():
        status = optimization.status(state, shown)
        states[name] = {"on": status.on, "detail": status.detail, "asked": name in asked}
    facts = {
        "device": state.machine.name,
        "device_kind": state.machine.kind,
        "memory_total_gib": state.machine.memory_gib,
        "family": state.family.label,
        "parameters": sum(value.numel() for value in state.model.parameters()),
        "optimizer": state.optimizer_spec.label,
        "schedule": state.schedule.label,
        "lr": state.base_lr,
        "train_clips": state.train_batches.num_clips,
        "val_clips": state.val_batches.num_clips if state.val_batches else 0,
        "effective_batch_size": _clips_a_step(state),
        "saved_activations_mib": round(shown.saved_bytes / MIB, 1),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "speakers": [speaker["name"] for speaker in state.corpus.facts["speakers"]],
    }
    return RunStarted(
        state.first_step,
        state.last_step,
        state.train_batches.steps_per_epoch,
        facts,
        states,
    )


def _clips_a_step(state: TrainState) -> int:
    """Return the clips per step; with a token budget their mean, because it varies by step."""
    training = state.config.training
    if training.max_positions:
        batches = state.train_batches
        return max(1, round(batches.num_clips / batches.steps_per_epoch))
    # The configured number of processes, not the current one: a run may resume on fewer GPUs, and
    # its steps still hold the same clips.
    return training.batch_size * training.accumulate * training.num_processes

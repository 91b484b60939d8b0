"""Recover from out-of-memory errors by splitting micro-batches.

A step that runs out of memory is retried with micro-batches half the size. The effective batch
stays the same, and so do the gradients, because losses are summed over the whole step. If a
single clip still doesn't fit, gradient checkpointing is turned on; if that fails too, the run
stops with an error. What was changed is written to the event log, so a resume starts with it.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from trainer.core.errors import MemoryFragmented, TimbreError
from trainer.core.events import Emit, Notice, RunAdapted
from trainer.core.options import build_options
from trainer.core.registry import find
from trainer.core.specs import Optimization
from trainer.core.train_state import Precision, Probe, TrainState
from trainer.state.probe import probe
from trainer.state.weights import upcast_weights
from trainer.training.oom_diagnosis import OomDiagnosis, OtherProcesses, diagnose_oom
from trainer.training.optimizer_step import PartialUpdate, is_out_of_memory

Result = TypeVar("Result")


class OutOfMemory(TimbreError):
    """Not even a single clip fits in memory; the user has to change something."""

    exit_code = 20  # the supervisor does not restart a run that ends with this code


class RestartFromCheckpoint(Exception):
    """The run must be rebuilt from its latest checkpoint, with the adaptations made so far."""


def restore_adaptation(state: TrainState, logged: RunAdapted | None) -> None:
    """Apply the adaptations that the event log holds to an assembled run; None changes nothing."""
    if logged is None:
        return
    state.adapted = logged
    _split_micro_batches(state, logged.parts)
    if logged.checkpointing:
        _enable_checkpointing(state)
    if logged.full_precision:
        state.precision = Precision()
        upcast_weights(state)


class OomGuard:
    """Runs a function and, when memory runs out, retries it with smaller micro-batches."""

    def __init__(self, state: TrainState, emit: Emit) -> None:
        self._state = state
        self._emit = emit
        self._other_processes = OtherProcesses(state, emit)
        self._first_step: int | None = None
        self._last_step = 0

    def run(self, step: int, fn: Callable[[], Result]) -> Result:
        """Call a function and return its result, with smaller micro-batches if necessary.

        Raises:
            OutOfMemory: not even a single clip fits.
            RestartFromCheckpoint: memory ran out during an update, so weights may be half updated.
            MemoryFragmented: memory is fragmented after many steps; a new process can continue with
                the same micro-batches.
        """
        num_tries = 0
        while True:
            is_lost = False
            try:
                result = fn()
            except PartialUpdate as error:
                reason, is_lost = str(error), True
                shortage = diagnose_oom(self._state)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                reason, shortage = str(error), diagnose_oom(self._state)
            else:
                self._record_step(step)
                return result
            # After the handler: inside it, the traceback keeps every tensor of the failed pass.
            self._free_memory()
            # A lost update cannot be retried, so waiting for other programs would not help.
            if not is_lost and self._other_processes.wait_for_memory(step, shortage, num_tries):
                num_tries += 1
                continue
            self._restart_if_fragmented(step, shortage, is_lost=is_lost)
            self._reduce_memory(step, reason.strip().splitlines()[0], shortage)
            if is_lost:
                raise RestartFromCheckpoint

    def _record_step(self, step: int) -> None:
        self._first_step = step if self._first_step is None else self._first_step
        self._last_step = step

    def probe_largest(self) -> Probe:
        """Probe the micro-batch that needs the most memory, before the first step."""
        state = self._state

        def watch() -> Probe:
            return probe(state, state.train_batches.largest().to(state.device))

        return self.run(state.first_step - 1, watch)

    def _free_memory(self) -> None:
        state = self._state
        state.optimizer.zero_grad(set_to_none=True)
        # Tensors in reference cycles are freed only by the collector, and `empty_cache` gives back
        # only free blocks.
        gc.collect()
        if state.device.type == "cuda":
            torch.cuda.empty_cache()

    def _restart_if_fragmented(self, step: int, shortage: OomDiagnosis, *, is_lost: bool) -> None:
        """End this process, once per run, if fragmentation is the reason that memory ran out."""
        state = self._state
        # Once per run: if a new process runs out as well, fragmentation was not the cause.
        num_steps = self._last_step - self._first_step if self._first_step is not None else 0
        if not shortage.is_fragmented or num_steps < _MANY_STEPS or state.adapted.regrouped:
            return
        text = (
            f"Out of memory at step {step}, although {shortage.unused_gib:.1f} GiB of the "
            f"{shortage.reserved_gib:.1f} GiB reserved were free: the free memory is fragmented."
        )
        state.adapted = replace(state.adapted, step=step, reason=text, regrouped=1)
        self._emit(state.adapted)
        remedy = "No action needed: the run is saved and continues in a new process."
        self._emit(Notice("warning", text, remedy, step))
        raise MemoryFragmented(text, None if is_lost else self._last_step)

    def _reduce_memory(self, step: int, reason: str, shortage: OomDiagnosis) -> None:
        state = self._state
        adapted = _next_adaptation(state, step, reason)
        if adapted is None:
            raise OutOfMemory(_explain(state, step, reason, shortage))
        self._emit(adapted)
        restore_adaptation(state, adapted)
        self._emit(
            Notice(
                "warning", _describe(state, reason) + _describe_shortage(shortage), _REMEDY, step
            )
        )


# Fragmentation takes many batches of different lengths to build up. If memory runs out sooner after
# a start, the batch is simply too large. Chosen by hand; no GPU run has shown this case yet.
_MANY_STEPS = 50
_REMEDY = (
    "Training continues as before, only slower. For full speed, halve the batch size "
    "and double the gradient accumulation next time, or turn on gradient checkpointing."
)


def _next_adaptation(state: TrainState, step: int, reason: str) -> RunAdapted | None:
    adapted = replace(state.adapted, step=step, reason=f"Out of memory: {reason}")
    # Smaller micro-batches first: recomputing activations costs time at every step.
    if adapted.parts < _max_clips(state):
        return replace(adapted, parts=min(2 * adapted.parts, _max_clips(state)))
    if not _is_checkpointing(state):
        return replace(adapted, checkpointing=True)
    return None


def _describe(state: TrainState, reason: str) -> str:
    if state.adapted.checkpointing:
        return f"Out of memory with single clips; gradient checkpointing is now on. ({reason})"
    return (
        f"Out of memory; every micro-batch is now split into {state.adapted.parts} parts. The "
        f"effective batch size stays the same. ({reason})"
    )


def _describe_shortage(shortage: OomDiagnosis) -> str:
    named = shortage.describe_processes()
    return f" Other programs are using memory of this GPU: {named}." if named else ""


def _explain(state: TrainState, step: int, reason: str, shortage: OomDiagnosis) -> str:
    clips = state.train_batches.largest()
    parameters = sum(value.numel() for value in state.model.parameters() if value.requires_grad)
    return (
        f"Out of memory at step {step} with one clip per micro-batch and gradient checkpointing "
        f"on: {reason}. {state.machine.name} has {state.machine.memory_gib:.1f} GiB; "
        f"{parameters:,} parameters are trained and the longest clip "
        f"({', '.join(clips.clip_ids)}) lasts {clips.audio_s:.1f} s.{_describe_shortage(shortage)} "
        "Start a new "
        "run with a lower 'Longest clip' under Data, with LoRA or with a smaller model, or close "
        "other programs that use this memory and press Resume."
    )


def _max_clips(state: TrainState) -> int:
    # Validation uses the same split, so a long eval clip must fit as well.
    found = state.train_batches.max_clips()
    return max(found, state.val_batches.max_clips()) if state.val_batches is not None else found


def _split_micro_batches(state: TrainState, parts: int) -> None:
    state.train_batches.split_micro_batches(parts)
    if state.val_batches is not None:
        state.val_batches.split_micro_batches(parts)


def _is_checkpointing(state: TrainState) -> bool:
    blocks = state.family.blocks(state.model)
    return all(getattr(block, "checkpointing", "") == "full" for block in blocks)


def _enable_checkpointing(state: TrainState) -> None:
    if not _is_checkpointing(state):
        entry = find("trainer.optimizations", Optimization, "gradient_checkpointing")
        entry.apply(state, build_options(entry.options, {}, entry.name))

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

from trainer.core.errors import MemoryInPieces, TimbreError
from trainer.core.events import Event, Notice, RunAdapted
from trainer.core.options import build_options
from trainer.core.probe import probe
from trainer.core.registry import find
from trainer.core.specs import Optimization
from trainer.core.train_state import Precision, Probe, Setup
from trainer.training.oom_diagnosis import Others, Shortage, read_shortage
from trainer.training.optimizer_step import UpdateLost, is_out_of_memory

Emit = Callable[[Event], None]
Result = TypeVar("Result")


class OutOfMemory(TimbreError):
    """Not even a single clip fits in memory; the user has to change something."""

    exit_code = 20  # the supervisor does not restart a run that ends with this code


class StartAgain(Exception):
    """The run must be rebuilt from its latest checkpoint, with the adaptations made so far."""


def take_up_adaptation(setup: Setup, told: RunAdapted | None) -> None:
    """Apply the adaptations that the event log holds to an assembled run; None changes nothing."""
    if told is None:
        return
    setup.adapted = told
    _cut(setup, told.parts)
    if told.checkpointing:
        _turn_checkpointing_on(setup)
    if told.full_precision:
        setup.precision = Precision()
        setup.widen()


class Fitting:
    """Runs a function and, when memory runs out, retries it with smaller micro-batches."""

    def __init__(self, setup: Setup, emit: Emit) -> None:
        self._setup = setup
        self._emit = emit
        self._others = Others(setup, emit)
        self._first: int | None = None
        self._done = 0

    def do(self, step: int, deed: Callable[[], Result]) -> Result:
        """Call a function and return its result, with smaller micro-batches if necessary.

        Raises:
            OutOfMemory: not even a single clip fits.
            StartAgain: memory ran out during an update, so weights may be half updated.
            MemoryInPieces: memory is fragmented after many steps; a new process can continue with
                the same micro-batches.
        """
        num_tries = 0
        while True:
            is_lost = False
            try:
                result = deed()
            except UpdateLost as error:
                reason, is_lost = str(error), True
                shortage = read_shortage(self._setup)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                reason, shortage = str(error), read_shortage(self._setup)
            else:
                self._note(step)
                return result
            # After the handler: inside it, the traceback keeps every tensor of the failed pass.
            self._free()
            # A lost update cannot be retried, so waiting for other programs would not help.
            if not is_lost and self._others.are_waited_for(step, shortage, num_tries):
                num_tries += 1
                continue
            self._leave_pieces(step, shortage, is_lost=is_lost)
            self._make_room(step, reason.strip().splitlines()[0], shortage)
            if is_lost:
                raise StartAgain

    def _note(self, step: int) -> None:
        self._first = step if self._first is None else self._first
        self._done = step

    def probe_largest(self) -> Probe:
        """Probe the micro-batch that needs the most memory, before the first step."""
        setup = self._setup

        def watch() -> Probe:
            return probe(setup, setup.train_batches.largest().to(setup.device))

        return self.do(setup.first_step - 1, watch)

    def _free(self) -> None:
        setup = self._setup
        setup.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()

    def _leave_pieces(self, step: int, shortage: Shortage, *, is_lost: bool) -> None:
        """End this process, once per run, if fragmentation is the reason that memory ran out."""
        setup = self._setup
        # Once per run: if a new process runs out as well, fragmentation was not the cause.
        num_steps = self._done - self._first if self._first is not None else 0
        if not shortage.is_in_pieces or num_steps < _MANY_STEPS or setup.adapted.regrouped:
            return
        text = (
            f"Out of memory at step {step}, although {shortage.idle_gib:.1f} GiB of the "
            f"{shortage.reserved_gib:.1f} GiB reserved were free: the free memory is fragmented."
        )
        setup.adapted = replace(setup.adapted, step=step, reason=text, regrouped=1)
        self._emit(setup.adapted)
        remedy = "No action needed: the run is saved and continues in a new process."
        self._emit(Notice("warning", text, remedy, step))
        raise MemoryInPieces(text, None if is_lost else self._done)

    def _make_room(self, step: int, reason: str, shortage: Shortage) -> None:
        setup = self._setup
        adapted = _next_adaptation(setup, step, reason)
        if adapted is None:
            raise OutOfMemory(_explain(setup, step, reason, shortage))
        self._emit(adapted)
        take_up_adaptation(setup, adapted)
        self._emit(Notice("warning", _describe(setup, reason) + _blame(shortage), _REMEDY, step))


# Fragmentation takes many batches of different lengths to build up. If memory runs out sooner after
# a start, the batch is simply too large. Chosen by hand; no GPU run has shown this case yet.
_MANY_STEPS = 50
_REMEDY = (
    "Training continues as before, only slower. For full speed, halve the batch size "
    "and double the gradient accumulation next time, or turn on gradient checkpointing."
)


def _next_adaptation(setup: Setup, step: int, reason: str) -> RunAdapted | None:
    adapted = replace(setup.adapted, step=step, reason=f"Out of memory: {reason}")
    # Smaller micro-batches first: recomputing activations costs time at every step.
    if adapted.parts < _most_clips(setup):
        return replace(adapted, parts=min(2 * adapted.parts, _most_clips(setup)))
    if not _is_checkpointing(setup):
        return replace(adapted, checkpointing=True)
    return None


def _describe(setup: Setup, reason: str) -> str:
    if setup.adapted.checkpointing:
        return f"Out of memory with single clips; gradient checkpointing is now on. ({reason})"
    return (
        f"Out of memory; every micro-batch is now split into {setup.adapted.parts} parts. The "
        f"effective batch size stays the same. ({reason})"
    )


def _blame(shortage: Shortage) -> str:
    named = shortage.name_holders()
    return f" Other programs are using memory of this GPU: {named}." if named else ""


def _explain(setup: Setup, step: int, reason: str, shortage: Shortage) -> str:
    clips = setup.train_batches.largest()
    parameters = sum(value.numel() for value in setup.model.parameters() if value.requires_grad)
    return (
        f"Out of memory at step {step} with one clip per micro-batch and gradient checkpointing "
        f"on: {reason}. {setup.machine.name} has {setup.machine.memory_gib:.1f} GiB; "
        f"{parameters:,} parameters are trained and the longest clip "
        f"({', '.join(clips.clip_ids)}) lasts {clips.audio_s:.1f} s.{_blame(shortage)} Start a new "
        "run with a lower 'Longest clip' under Data, with LoRA or with a smaller model, or close "
        "other programs that use this memory and press Resume."
    )


def _most_clips(setup: Setup) -> int:
    # Validation uses the same split, so a long eval clip must fit as well.
    found = setup.train_batches.most_clips()
    return max(found, setup.val_batches.most_clips()) if setup.val_batches is not None else found


def _cut(setup: Setup, parts: int) -> None:
    setup.train_batches.cut(parts)
    if setup.val_batches is not None:
        setup.val_batches.cut(parts)


def _is_checkpointing(setup: Setup) -> bool:
    blocks = setup.family.blocks(setup.model)
    return all(getattr(block, "checkpointing", "") == "full" for block in blocks)


def _turn_checkpointing_on(setup: Setup) -> None:
    if not _is_checkpointing(setup):
        entry = find("trainer.optimizations", Optimization, "gradient_checkpointing")
        entry.apply(setup, build_options(entry.options, {}, entry.name))

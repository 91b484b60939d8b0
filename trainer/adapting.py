"""Adapting: what a run changes by itself to go on when memory runs out, remembered in its log.

Micro-batches are cut in halves while the effective batch, the clips of a step and, since losses
are sums over the totals of the whole step, its gradient stay. Where single clips are too much,
gradient checkpointing is turned on; after that only a person can help.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch

from trainer.catalog import find
from trainer.errors import TimbreError
from trainer.events import Event, Notice, RunAdapted
from trainer.options import build_options
from trainer.probe import probe
from trainer.setup import Precision, Probe, Setup
from trainer.shortage import Others, Shortage, read_shortage
from trainer.specs import Optimization
from trainer.updates import UpdateLost, is_out_of_memory

Emit = Callable[[Event], None]
Result = TypeVar("Result")


class OutOfMemory(TimbreError):
    """Not even a single clip fits; only a person can change that."""

    exit_code = 20


class MemoryInPieces(TimbreError):
    """What is reserved lies in pieces that are too small; a new process begins with whole memory.

    `step`: the last step done, to be saved before this process ends; None if an update was lost.
    """

    exit_code = 30

    def __init__(self, text: str, step: int | None) -> None:
        self.step = step
        super().__init__(text)


class StartAgain(Exception):
    """The run is to be assembled anew from its newest checkpoint, with what it adapted."""


def take_up_adaptation(setup: Setup, told: RunAdapted | None) -> None:
    """Let an assembled run go on as its log tells that it adapted, or as it is if it did not."""
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
    """Does what needs memory, and when that runs out, makes room and does it again."""

    def __init__(self, setup: Setup, emit: Emit) -> None:
        self._setup = setup
        self._emit = emit
        self._others = Others(setup, emit)
        self._first: int | None = None
        self._done = 0

    def do(self, step: int, deed: Callable[[], Result]) -> Result:
        """Return what a deed returns, with smaller micro-batches if need be.

        Raises:
            OutOfMemory: not even a single clip fits.
            StartAgain: memory ran out where it left weights half updated.
            MemoryInPieces: after many steps, and a new process may go on as it is.
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
            # Behind the handler: the error held on to every tensor of the pass that failed.
            self._free()
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
        """Watch a pass over the micro-batch that needs the most memory, before the first step."""
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
        """End this process, once in a run, if memory ran out by its order after many steps."""
        setup = self._setup
        num_steps = self._done - self._first if self._first is not None else 0
        if not shortage.is_in_pieces or num_steps < _MANY_STEPS or setup.adapted.regrouped:
            return
        text = (
            f"Memory ran out at step {step} although {shortage.idle_gib:.1f} GiB of the "
            f"{shortage.reserved_gib:.1f} GiB reserved were free: they lay in pieces too small."
        )
        setup.adapted = replace(setup.adapted, step=step, reason=text, regrouped=1)
        self._emit(setup.adapted)
        remedy = "Nothing need be done: the run is saved, and a new process goes on from there."
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


_MANY_STEPS = 50
"""Memory that runs out sooner after a start is no matter of its order."""
_REMEDY = (
    "It trains the same way with smaller pieces, only slower. For full speed, halve the batch size "
    "and double the accumulation next time, or tick gradient checkpointing."
)


def _next_adaptation(setup: Setup, step: int, reason: str) -> RunAdapted | None:
    adapted = replace(setup.adapted, step=step, reason=f"Memory ran out: {reason}")
    if adapted.parts < _most_clips(setup):
        return replace(adapted, parts=min(2 * adapted.parts, _most_clips(setup)))
    if not _is_checkpointing(setup):
        return replace(adapted, checkpointing=True)
    return None


def _describe(setup: Setup, reason: str) -> str:
    if setup.adapted.checkpointing:
        return f"Memory ran out with single clips; gradient checkpointing is on now. ({reason})"
    return (
        f"Memory ran out; every micro-batch is cut into {setup.adapted.parts} pieces now, at the "
        f"same effective batch size. ({reason})"
    )


def _blame(shortage: Shortage) -> str:
    named = shortage.name_holders()
    return f" Other programs hold memory of this GPU: {named}." if named else ""


def _explain(setup: Setup, step: int, reason: str, shortage: Shortage) -> str:
    clips = setup.train_batches.largest()
    parameters = sum(value.numel() for value in setup.model.parameters() if value.requires_grad)
    return (
        f"Memory ran out at step {step} with a single clip in a micro-batch and gradient "
        f"checkpointing on: {reason}. {setup.machine.name} has {setup.machine.memory_gib:.1f} GiB; "
        f"{parameters:,} weights are trained and the longest clip ({', '.join(clips.clip_ids)}) "
        f"has {clips.audio_s:.1f} s.{_blame(shortage)} Lower 'Longest clip' under Data in a new "
        "run, tick LoRA, take a smaller model, or end what else uses this memory and press Resume."
    )


def _most_clips(setup: Setup) -> int:
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

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
from trainer.specs import Optimization
from trainer.updates import UpdateLost, is_out_of_memory

Emit = Callable[[Event], None]
Result = TypeVar("Result")


class OutOfMemory(TimbreError):
    """Not even a single clip fits; only a person can change that."""

    exit_code = 20


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

    def do(self, step: int, deed: Callable[[], Result]) -> Result:
        """Return what a deed returns, with smaller micro-batches if need be.

        Raises:
            OutOfMemory: not even a single clip fits.
            StartAgain: memory ran out where it left weights half updated.
        """
        while True:
            is_lost = False
            try:
                return deed()
            except UpdateLost as error:
                reason, is_lost = str(error), True
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                reason = str(error)
            # Behind the handler: the error held on to every tensor of the pass that failed.
            self._make_room(step, reason.strip().splitlines()[0])
            if is_lost:
                raise StartAgain

    def probe_largest(self) -> Probe:
        """Watch a pass over the micro-batch that needs the most memory, before the first step."""
        setup = self._setup

        def watch() -> Probe:
            return probe(setup, setup.train_batches.largest().to(setup.device))

        return self.do(setup.first_step - 1, watch)

    def _make_room(self, step: int, reason: str) -> None:
        setup = self._setup
        setup.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        if setup.device.type == "cuda":
            torch.cuda.empty_cache()
        adapted = _next_adaptation(setup, step, reason)
        if adapted is None:
            raise OutOfMemory(_explain(setup, step, reason))
        self._emit(adapted)
        take_up_adaptation(setup, adapted)
        self._emit(Notice("warning", _describe(setup, reason), _REMEDY, step))


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


def _explain(setup: Setup, step: int, reason: str) -> str:
    clips = setup.train_batches.largest()
    parameters = sum(value.numel() for value in setup.model.parameters() if value.requires_grad)
    return (
        f"Memory ran out at step {step} with a single clip in a micro-batch and gradient "
        f"checkpointing on: {reason}. {setup.machine.name} has {setup.machine.memory_gib:.1f} GiB; "
        f"{parameters:,} weights are trained and the longest clip ({', '.join(clips.clip_ids)}) "
        f"has {clips.audio_s:.1f} s. Lower 'Longest clip' under Data in a new run, tick LoRA, take "
        "a smaller model, or end what else uses this memory and press Resume."
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

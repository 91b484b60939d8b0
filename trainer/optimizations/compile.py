"""Compile the model's blocks with torch.compile if that saves time overall.

Compiling costs seconds at the start and saves part of every step. Before trying it, the best
possible saving is compared with the usual time of compiling; afterwards the measured steps decide.
Validation and generation run uncompiled, because their many shapes would need compilations of their
own.
"""

import functools
import importlib.util
import os
import shutil
import subprocess
import time
import types
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainer.core.device import Device
from trainer.core.events import Emit, Notice, PhaseChanged
from trainer.core.options import option
from trainer.core.specs import Optimization, OptimizationStatus
from trainer.core.train_state import Probe, TrainState
from trainer.core.types import Batch
from trainer.data.features.cache import default_cache_folder
from trainer.optimizations._core.blocks import compute_block
from trainer.optimizations._core.cuda_graphs import (
    count_graphs,
    describe_graphs,
    drop_graphs,
    prepare_graphs,
)
from trainer.state.probe import forward_backward

if TYPE_CHECKING:
    from trainer.optimizations._core.compiled_block import SharedProgram

_BUDGETS = {"light": 0.6, "medium": 0.3}
"""The share of its activations that a compiled block keeps, by level of gradient checkpointing;
chosen by hand."""

_AT_BEST = 0.5
"""The largest share of a step that compiling may be expected to save; chosen by hand, generously,
so that only hopeless cases are ruled out unmeasured."""

_USUAL_COMPILE_S = 40.0  # assumed before it is measured; chosen by hand
_CLEARLY_FASTER = 0.98  # of the uncompiled time; smaller gains are within timing noise
_GRAPHS = "reduce-overhead"


@dataclass(frozen=True)
class Options:
    """The options of compilation."""

    mode: str = option(
        "default",
        "Compiler mode",
        "reduce-overhead records CUDA graphs, one per block and length, for short steps on fast "
        "GPUs. It takes more memory and pads rows to a multiple of 32 positions, which adds a few "
        "percent of computation. It has not been tested on a GPU yet.",
        choices=("default", "reduce-overhead"),
    )
    when: str = option(
        "auto",
        "When",
        "auto: only if the measured gain over the remaining steps exceeds the compile time; "
        "otherwise the blocks run uncompiled. always: regardless of the cost.",
        choices=("auto", "always"),
    )
    same_dropout: bool = option(
        False,
        "Same dropout as without",
        "Draws the same dropout masks as the uncompiled model, for the same loss curve; slightly "
        "slower.",
        advanced=True,
    )


def unavailable(device: Device) -> str | None:
    """Return which compiler is missing, or None."""
    if device.kind == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "it needs the package triton (on Windows: triton-windows)."
        # Triton supports NVIDIA GPUs from compute capability 7.0 (Volta) on.
        return None if device.capability >= (7, 0) else f"{device.name} is too old for triton."
    known = [os.environ.get("CXX", ""), "g++", "clang++", "c++", "cl"]
    if any(name and shutil.which(name) for name in known):
        return None
    return "it needs a C++ compiler; install g++ or clang (on Windows: Visual Studio)."


def refuse(device: Device, options: Options) -> str | None:
    """Return why a mode cannot be used on a device, or None."""
    if options.mode == _GRAPHS and device.kind == "cpu":
        return "reduce-overhead records CUDA graphs and needs a GPU. Choose the default mode."
    return None


def apply(state: TrainState, options: Options) -> None:
    """Give every block of the model the compiled form of its class's forward."""
    if options.mode == _GRAPHS:
        prepare_graphs(state)
    _attach_programs(state, options)


def _attach_programs(state: TrainState, options: Options) -> None:
    # Imported here because loading the compiler takes seconds.
    from trainer.optimizations._core.compiled_block import SharedProgram, compile_with_inductor

    # The compiler's default is the folder for temporary files, which a reboot may empty.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(default_cache_folder() / "compiled"))
    programs: dict[type, SharedProgram] = {}
    for block in state.family.blocks(state.model):
        kind = type(block)
        if kind not in programs:
            budget = _BUDGETS.get(str(getattr(block, "checkpointing", "")), 1.0)
            compile_graph = functools.partial(
                compile_with_inductor,
                mode=options.mode,
                same_dropout=options.same_dropout,
                budget=budget,
            )
            records = options.mode == _GRAPHS
            programs[kind] = SharedProgram(kind.forward, compile_graph, records=records)
        # Not by assignment, so that it does not become part of the module's state.
        vars(block)["program"] = programs[kind]
        if "forward" not in vars(block):
            block.forward = types.MethodType(_forward, block)


def _forward(self: nn.Module, *args: object, **kwargs: object) -> object:
    return compute_block(self, *args, **kwargs)


def finalize(state: TrainState, options: Options, emit: Emit) -> None:
    """Compile, measure, and keep the result if it pays; report the numbers either way."""
    programs = _programs(state)
    batches = state.train_batches.micro_batches(state.first_step)
    if not programs or not batches:
        return
    emit(PhaseChanged("Compiling the model"))
    try:
        emit(_try_out(state, options, batches, programs))
    except torch.OutOfMemoryError:
        # Splitting batches that do not fit comes later, so this cannot be measured here.
        reason = "the first batch does not fit into memory"
        _disable_all(programs, reason)
        emit(Notice("warning", f"The model is not compiled: {reason}.", "Lower the batch size."))


@dataclass(frozen=True)
class Gain:
    """What compiling costs and saves: seconds per step without and with it, and steps left."""

    plain_s: float
    compiled_s: float
    compile_s: float
    steps: int

    def describe(self) -> str:
        """Return the numbers in a sentence."""
        saved_s = (self.plain_s - self.compiled_s) * self.steps
        return (
            f"{self.compile_s:.0f} s of compiling; a step's forward and backward pass takes "
            f"{self.compiled_s:.3f} s instead of {self.plain_s:.3f} s, over {self.steps} steps "
            f"{abs(saved_s):.0f} s {'less' if saved_s >= 0 else 'more'}"
        )


def compile_cannot_pay(plain_s: float, steps: int, compile_s: float) -> str:
    """Return why compiling cannot pay off in the remaining steps; empty if it may."""
    at_best = _AT_BEST * plain_s * steps
    if at_best >= compile_s:
        return ""
    return (
        f"it would not pay off: the {steps} remaining steps of {plain_s:.3f} s could save at most "
        f"{at_best:.0f} s, and compiling takes about {compile_s:.0f} s"
    )


def _try_out(
    state: TrainState, options: Options, batches: list[Batch], programs: "list[SharedProgram]"
) -> Notice:
    batch, steps = batches[0].to(state.device), state.last_step - state.first_step + 1
    is_auto = options.when == "auto"
    _disable_all(programs, "being measured")
    plain_s = _time_pass(state, batch) * len(batches)
    reason = compile_cannot_pay(plain_s, steps, _USUAL_COMPILE_S) if is_auto else ""
    if reason:
        _disable_all(programs, reason)
        return Notice("info", f"The model is not compiled: {reason}.")
    compile_s, compiled_s, failure = _compile_and_time(state, batch, programs)
    without = ""
    if failure and options.mode == _GRAPHS:
        without = f", without CUDA graphs: {failure}"
        drop_graphs(state)
        _attach_programs(state, replace(options, mode="default"))
        programs = _programs(state)
        compile_s, compiled_s, failure = _compile_and_time(state, batch, programs)
    if failure:
        remedy = "The run continues uncompiled. The log has the compiler's error."
        return Notice("warning", f"The model is not compiled: {failure}.", remedy)
    gain = Gain(plain_s, compiled_s * len(batches), compile_s, steps)
    if is_auto and gain.compiled_s > _CLEARLY_FASTER * plain_s:
        _disable_all(programs, f"it is not faster here: {gain.describe()}")
        return Notice("info", f"The model is not compiled: it is not faster. {gain.describe()}.")
    return Notice("info", f"The model is compiled: {gain.describe()}{without}.")


def _compile_and_time(
    state: TrainState, batch: Batch, programs: "list[SharedProgram]"
) -> tuple[float, float, str]:
    """Return the compile time (s), the time of a compiled pass (s), and why it failed, if so."""
    from torch._dynamo.exc import TorchDynamoException

    from trainer.optimizations._core.compiled_block import explain

    _disable_all(programs, "")
    started = time.perf_counter()
    failure, first_s, compiled_s = "", 0.0, 0.0
    try:
        forward_backward(state, batch)
        first_s = time.perf_counter() - started
        compiled_s = _time_pass(state, batch)
    except TorchDynamoException as error:
        failure = explain(error)
    except _errors_of_kernels() as error:
        # The uncompiled pass before this one succeeded, so the compiled form is at fault.
        is_recording = any(program.records for program in programs)
        said = " ".join(str(error).split())[:200]
        failure = f"they could not be recorded: {said}" if is_recording else explain(error)
    failure = failure or next((one.disabled_reason for one in programs if one.disabled_reason), "")
    if failure:
        _disable_all(programs, failure)
    # The first pass compiles and then computes; only the compiling counts.
    return max(0.0, first_s - compiled_s), compiled_s, failure


def _errors_of_kernels() -> tuple[type[Exception], ...]:
    """Return the errors raised when kernels cannot be built, loaded, timed or recorded."""
    kinds = (RuntimeError, OSError, subprocess.SubprocessError)
    try:
        from triton.errors import TritonError  # type: ignore[import-not-found]
    except ImportError:
        return kinds
    return (*kinds, TritonError)


def _time_pass(state: TrainState, batch: Batch) -> float:
    """Return the seconds of a forward and backward pass: the faster of two after a warm-up."""
    seconds = []
    for _ in range(3):
        started = time.perf_counter()
        forward_backward(state, batch)
        if state.device.type == "cuda":
            # Kernels run asynchronously; without this only their launch is timed.
            torch.cuda.synchronize(state.device)
        seconds.append(time.perf_counter() - started)
    # The minimum, because other programs can only make a pass slower.
    return min(seconds[1:])


def _disable_all(programs: "list[SharedProgram]", reason: str) -> None:
    for program in programs:
        program.disable(reason)


def status(state: TrainState, probe: Probe) -> OptimizationStatus:
    """Report how many blocks ran compiled, and how often they were recompiled."""
    num_blocks = len(probe.compiled_calls)
    if num_blocks == 0:
        return OptimizationStatus(False, "this model has no blocks to compile")
    programs = _programs(state)
    if not programs:
        return OptimizationStatus(False, f"{num_blocks} blocks run uncompiled")
    resting = [program.disabled_reason for program in programs if program.disabled_reason]
    if resting:
        return OptimizationStatus(False, resting[0])
    num_compiled = sum(calls > 0 for calls in probe.compiled_calls)
    num_again = sum(program.num_graphs for program in programs) - len(programs)
    again = f", recompiled {num_again} times" if num_again > 0 else ""
    detail = f"{num_compiled} of {num_blocks} blocks ran compiled{again}"
    is_on = num_compiled == num_blocks
    if any(program.records for program in programs):
        detail += f"; {describe_graphs(state)}"
        is_on = is_on and count_graphs(state.device)[0] > 0
    return OptimizationStatus(is_on, detail)


def _programs(state: TrainState) -> "list[SharedProgram]":
    found = [vars(block).get("program") for block in state.family.blocks(state.model)]
    return list(dict.fromkeys(program for program in found if program is not None))


OPTIMIZATION = Optimization(
    name="compile",
    label="Compile the model",
    help="torch.compile turns each block into a few fused kernels: faster steps and less "
    "activation memory, after seconds to minutes of compiling at the start. Older guides enable "
    "TensorRT and XLA, which are for inference and for TPUs; for training, use this instead.",
    stage="compile",
    exact=False,
    options=Options,
    unavailable=unavailable,
    apply=apply,
    status=status,
    refuse=refuse,
    finalize=finalize,
)

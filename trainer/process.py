"""The training process: own a run folder, assemble, train, and end with a word in the log."""

import faulthandler
import gc
import logging
import math
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

import psutil

from trainer.adapting import Fitting, StartAgain, take_up_adaptation
from trainer.alerts import Alerts
from trainer.assemble import assemble, choose_device, describe_start
from trainer.distributed import join_world, leave_world
from trainer.errors import StopRequested, TimbreError
from trainer.events import Event, PhaseChanged, RunFinished, StepDone
from trainer.guard import FIRST_STEPS, Guard
from trainer.loop import train
from trainer.plan import take_up_plan
from trainer.runs import Run
from trainer.setup import Setup, World

FINISHED, FAILED, STOPPED, RESTARTABLE = 0, 1, 10, 30
_LOG = logging.getLogger("timbre")
_FREQUENT = (StepDone, PhaseChanged)


def continue_run(run: Run, listen: Callable[[Event], None] | None = None) -> int:
    """Start or continue a run folder in this process and return its exit code.

    Exit codes: 0 finished, 10 stopped, 1/2/20 needs a person, 30 may be restarted, 75 owned.

    Raises:
        RunOwned: another process trains it.
    """
    world = join_world(choose_device(run.config.training.device).kind)
    lock = run.take(timeout_s=2.0) if world.is_main else None
    if world.is_main:
        run.drop_requests_before(psutil.Process().create_time())
    _set_up_process(run, world)
    emit = _emitter(run, world, listen)
    try:
        while (code := _train_and_tell(run, world, emit)) is None:
            gc.collect()
        return code
    finally:
        leave_world(world)
        if lock is not None:
            lock.release()


def _train_and_tell(run: Run, world: World, emit: Callable[[Event], None]) -> int | None:
    """Train a run to its end and return the exit code; None: it goes back to its last save."""
    setup: Setup | None = None
    try:
        setup = assemble(run.folder, run.config, world=world, emit=emit)
        take_up_adaptation(setup, run.series().adapted)
        take_up_plan(setup, run.series().plan, emit)
        emit(describe_start(setup, Fitting(setup, emit).probe_largest()))
        outcome = train(setup, _watched(run, setup, emit))
    except StopRequested as error:
        run.answer("stop")
        emit(RunFinished("stopped", _step_of(run), str(error), "Press Resume to go on."))
        return STOPPED
    except StartAgain:
        if world.size == 1:
            return None
        # The other ranks may not know; a new process for each of them is the surest way.
        reason = "The run goes back to its last checkpoint."
        emit(RunFinished("failed", _step_of(run), reason, "Press Resume: it goes on."))
        return RESTARTABLE
    except TimbreError as error:
        _LOG.error("%s", error)
        emit(RunFinished("failed", _step_of(run), str(error)))
        return error.exit_code
    # The process's last resort: whatever ends a run, the log says what it was.
    except Exception as error:
        _LOG.exception("The training process failed")
        reason, remedy, code = explain_failure(error)
        emit(RunFinished("failed", _step_of(run), reason, remedy))
        return code
    finally:
        if setup is not None:
            setup.train_batches.close()
            if setup.val_batches is not None:
                setup.val_batches.close()
    run.answer("stop")
    emit(RunFinished(outcome, _step_of(run)))
    return STOPPED if outcome == "stopped" else FINISHED


def _watched(run: Run, setup: Setup, emit: Callable[[Event], None]) -> Callable[[Event], None]:
    """Let alerts watch the whole run, and the guard its first steps."""
    if not setup.world.is_main:
        return emit
    total_gib = setup.machine.memory_gib if setup.device.type == "cuda" else math.inf
    patience = setup.config.training.patience
    emit = Alerts(run.folder, total_gib=total_gib, patience=patience).watch(emit)
    if setup.first_step > FIRST_STEPS:
        return emit
    known = run.series().steps.columns
    return Guard(run.folder, setup.config, setup.base_lr, known).watch(emit)


def explain_failure(error: Exception) -> tuple[str, str, int]:
    """Say in words what an unforeseen error means: (reason, remedy, exit code)."""
    name, text = type(error).__name__, str(error).strip().splitlines()
    first = text[0] if text else "without a message"
    if name == "OutOfMemoryError" or "out of memory" in first.lower():
        remedy = "Halve the batch size and double the accumulation, or tick gradient checkpointing."
        return f"The device ran out of memory: {first}", remedy, 20
    if "CUDA error" in first:
        return f"The GPU failed: {first}", "Press Resume: a new process starts afresh.", RESTARTABLE
    return (
        f"{name}: {first}",
        "The log holds the details. Resume goes on from the last save.",
        FAILED,
    )


def _set_up_process(run: Run, world: World) -> None:
    _set_up_log(run)
    faulthandler.enable()
    if world.is_main:
        run.write_owner()
    numbers = (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM))

    def ask_to_stop(signum: int, frame: FrameType | None) -> None:
        run.request("stop")
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    for number in numbers:
        signal.signal(number, ask_to_stop)


def _set_up_log(run: Run) -> None:
    """Log to the run's file, and to a terminal or pipe if that is not the same file."""
    path = run.folder / "log.txt"
    handlers: list[logging.Handler] = [logging.FileHandler(path, encoding="utf-8")]
    shown, logged = os.fstat(sys.stderr.fileno()), path.stat()
    if (shown.st_dev, shown.st_ino) != (logged.st_dev, logged.st_ino):
        handlers.append(logging.StreamHandler())
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=handlers)


def _emitter(
    run: Run, world: World, listen: Callable[[Event], None] | None
) -> Callable[[Event], None]:
    def emit(event: Event) -> None:
        if not world.is_main:
            return
        run.events.append(event)
        if not isinstance(event, _FREQUENT):
            _LOG.info("%s", event)
        if listen is not None:
            listen(event)

    return emit


def _step_of(run: Run) -> int:
    return run.series().last_step

"""The training process: lock a run folder, assemble the run, train, and log how it ended."""

import faulthandler
import gc
import logging
import os
import signal
import sys
from dataclasses import replace
from types import FrameType
from typing import IO

import psutil

from trainer.core.errors import StopRequested, TimbreError
from trainer.core.events import Publisher, RunFinished, Subscriber
from trainer.core.train_state import TrainState, World
from trainer.runs.heartbeat import Heartbeat, end_orphans
from trainer.runs.locks import ProcessIdentity
from trainer.runs.restart_policy import (
    FAILED,
    FINISHED,
    NEEDS_PERSON,
    RESTARTABLE,
    RESUME,
    STOP_SIGNALS,
    STOPPED,
    Ending,
    is_restart_pointless,
    pop_ending,
    write_ending,
)
from trainer.runs.run import Run
from trainer.runs.run_folder import Snapshot
from trainer.training.assemble import assemble, choose_device, describe_start
from trainer.training.distributed import join_world, leave_world
from trainer.training.loop import train
from trainer.training.oom_recovery import OomGuard, RestartFromCheckpoint, restore_adaptation
from trainer.training.preflight import check_resources
from trainer.training.run_length import restore_run_length
from trainer.worker.subscribers import process_subscribers, training_subscribers
from trainer.worker.supervisor import die_with_parent

_LOG = logging.getLogger("timbre")
# How torch words failures that a new process can fix; it has no exception class for most of them.
_STICKY = ("CUDA error", "CUDA driver error", "CUBLAS_STATUS", "CUDNN_STATUS", "cudaError")
_LOST_PEERS = ("DistBackendError", "DistNetworkError", "DistStoreError")
_PEER_WORDS = ("Connection closed by peer", "Connection reset by peer", "NCCL error")


def continue_run(
    run: Run, listen: Subscriber | None = None, snapshot: Snapshot | None = None
) -> int:
    """Start or continue a run in this process and return an exit code of
    `trainer.runs.restart_policy`.

    `snapshot` is the run as the caller has read it; it is read again only if it changed since.

    Raises:
        RunOwned: another process is training the run.
    """
    if is_restart_pointless(run.folder):
        return FAILED
    snapshot = snapshot or run.snapshot()
    world = join_world(choose_device(snapshot.config.training.device).kind)
    # 2 s: the lock of a process that has just ended may take a moment to be released.
    lock = run.take(timeout_s=2.0) if world.is_main else None
    if world.is_main:
        # A stop request meant for an earlier process must not stop this one.
        run.drop_requests_before(psutil.Process().create_time())
        end_orphans(run.folder, ProcessIdentity.of(os.getppid()))
        if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            pop_ending(run.folder)  # left over from an earlier process
    heartbeat = set_up_process(run, world)
    emit = Publisher(*process_subscribers(run, world, heartbeat, listen))
    # Until the lock was taken, another process may have trained the run.
    snapshot = run.snapshot(snapshot)
    try:
        while (ending := _train_and_report(run, world, emit, snapshot)) is None:
            # What the run has adapted changes its steps, so none is compared with earlier ones.
            snapshot = replace(run.snapshot(), repeated={})
            gc.collect()  # cycles still hold the old model; free it before building the new one
        return _code_of(ending, run, world)
    finally:
        heartbeat.end()
        leave_world(world)
        if lock is not None:
            lock.release()


def _code_of(ending: Ending, run: Run, world: World) -> int:
    """Return the exit code; with several processes, a code other than 0 ends the others too."""
    if world.size == 1 or ending.code in (FINISHED, RESTARTABLE):
        return ending.code
    write_ending(run.folder, ending, world.rank)
    return FINISHED if ending.is_common else ending.code


def _train_and_report(run: Run, world: World, emit: Publisher, snapshot: Snapshot) -> Ending | None:
    """Train a run to its end; return how it ended, or None to restart from its last checkpoint."""
    state: TrainState | None = None
    try:
        state = assemble(run.folder, snapshot.config, world=world, emit=emit)
        restore_adaptation(state, snapshot.adapted)
        restore_run_length(state, snapshot.plan, emit)
        check_resources(state)
        emit(describe_start(state, OomGuard(state, emit).probe_largest()))
        watching = training_subscribers(state, snapshot.first_steps, snapshot.repeated)
        outcome = train(state, Publisher(*emit.subscribers, *watching))
    except StopRequested as error:
        run.answer("stop")
        emit(RunFinished("stopped", _step_of(run), str(error), "Press Resume to continue."))
        return Ending(STOPPED, str(error))
    except RestartFromCheckpoint:
        if world.size == 1:
            return None
        # The other ranks may not know about it, so each rank restarts in a new process.
        reason = "The run restarts from its last checkpoint."
        emit(RunFinished("failed", _step_of(run), reason, RESUME))
        return Ending(RESTARTABLE, reason)
    except TimbreError as error:
        _LOG.error("%s", error)
        emit(RunFinished("failed", _step_of(run), str(error)))
        return Ending(error.exit_code, str(error))
    # Last resort: any other error must still leave its reason in the event log.
    except Exception as error:
        _LOG.exception("The training process failed")
        reason, remedy, code = explain_failure(error)
        emit(RunFinished("failed", _step_of(run), reason, remedy))
        return Ending(code, reason)
    finally:
        if state is not None:
            state.train_batches.close()
            if state.val_batches is not None:
                state.val_batches.close()
    run.answer("stop")
    emit(RunFinished(outcome, _step_of(run)))
    return Ending(STOPPED if outcome == "stopped" else FINISHED, is_common=True)


def explain_failure(error: Exception) -> tuple[str, str, int]:
    """Explain an unexpected error: (reason, remedy, exit code)."""
    name, text = type(error).__name__, str(error).strip().splitlines()
    first = text[0] if text else "no message"
    if name == "OutOfMemoryError" or "out of memory" in first.lower():
        remedy = "Halve the batch size and double the accumulation, or tick gradient checkpointing."
        return f"The device ran out of memory: {first}", remedy, NEEDS_PERSON
    if "no kernel image" in first:
        remedy = "Install a PyTorch build that supports this GPU (pytorch.org) or use device cpu."
        return f"This PyTorch build has no code for the GPU: {first}", remedy, NEEDS_PERSON
    if name == "AcceleratorError" or any(word in first for word in _STICKY):
        # A CUDA error is permanent for the process, because torch cannot reset the device.
        return f"The GPU failed: {first}", RESUME, RESTARTABLE
    if name in _LOST_PEERS or any(word in first for word in _PEER_WORDS):
        return f"Another training process was lost: {first}", RESUME, RESTARTABLE
    return (
        f"{name}: {first}",
        "See log.txt for details. Press Resume to continue from the last checkpoint.",
        FAILED,
    )


def set_up_process(run: Run, world: World) -> Heartbeat:
    """Set up logging and signals, record the owner, and return the running heartbeat."""
    log = _set_up_log(run)
    faulthandler.enable(log)
    # The supervisor sends SIGUSR1 to a stalled process to get its stack into the log.
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, log)
    if world.is_main:
        run.write_owner()
    if world.size > 1:
        # With one process the supervisor is the parent, and `report` has set this already.
        die_with_parent()
    install_signal_handlers(run)
    identity = ProcessIdentity.of(os.getpid())
    assert identity is not None
    heartbeat = Heartbeat(run.folder, identity, world.rank)
    heartbeat.start()
    return heartbeat


def install_signal_handlers(run: Run) -> None:
    """Treat the first termination signal as Stop; a second one ends the process immediately."""

    def ask_to_stop(signum: int, frame: FrameType | None) -> None:
        run.request("stop")
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    for number in STOP_SIGNALS:
        # torchrun sends SIGTERM to the other ranks when one is lost; that is not a person's Stop.
        if number != signal.SIGTERM or "TORCHELASTIC_RUN_ID" not in os.environ:
            signal.signal(number, ask_to_stop)


def _set_up_log(run: Run) -> IO[str]:
    """Log to the run's file and, unless stderr is that file, to stderr; return the file."""
    path = run.folder / "log.txt"
    logged_to = logging.FileHandler(path, encoding="utf-8")
    handlers: list[logging.Handler] = [logged_to]
    # A detached process already has log.txt as its stderr; two handlers would double every line.
    shown, logged = os.fstat(sys.stderr.fileno()), path.stat()
    if (shown.st_dev, shown.st_ino) != (logged.st_dev, logged.st_ino):
        handlers.append(logging.StreamHandler())
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, handlers=handlers)
    return logged_to.stream or sys.stderr


def _step_of(run: Run) -> int:
    return run.newest().last_step

"""Compute features in worker processes; a worker that crashes loses only one clip."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool

from trainer.core.errors import DataError
from trainer.core.specs import Featurizer
from trainer.core.types import Clip, Features

Result = Features | str
_state: dict[str, Featurizer] = {}
_DIED = "The process that read it crashed. The file is probably damaged and breaks its decoder."


def compute_in_workers(
    clips: Sequence[Clip], featurizer: Featurizer, workers: int
) -> Iterator[tuple[Clip, Result]]:
    """Yield each clip with its features, or the reason why it has none, in order of completion.

    If a worker crashes, the clips in progress are retried one at a time, each in a new process.
    """
    packed = pickle.dumps(featurizer)
    left = list(clips)
    while left:
        suspects: list[Clip] = []
        finished: set[str] = set()
        for clip, result in _until_death(left, packed, workers, suspects):
            finished.add(clip.id)
            yield clip, result
        for clip in suspects:
            finished.add(clip.id)
            yield clip, _compute_alone(clip, packed)
        left = [clip for clip in left if clip.id not in finished]


def _until_death(
    clips: Sequence[Clip], packed: bytes, workers: int, suspects: list[Clip]
) -> Iterator[tuple[Clip, Result]]:
    """Yield results until all are done or a worker dies; put clips in progress in `suspects`."""
    waiting = list(reversed(clips))
    pending: dict[Future[Result], Clip] = {}
    pool = _start_pool(packed, workers)
    try:
        while True:
            while waiting and len(pending) < 2 * workers:
                pending[pool.submit(_featurize, waiting[-1])] = waiting[-1]
                waiting.pop()
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                result = future.result()
                yield pending.pop(future), result
    except BrokenProcessPool:
        suspects.extend(pending.values())
    finally:
        # Also runs if the caller stops iterating, so that no worker keeps computing.
        pool.shutdown(wait=True, cancel_futures=True)


def _compute_alone(clip: Clip, packed: bytes) -> Result:
    with _start_pool(packed, 1) as pool:
        try:
            return pool.submit(_featurize, clip).result()
        except BrokenProcessPool:
            return _DIED


def _start_pool(packed: bytes, workers: int) -> ProcessPoolExecutor:
    # Spawn, not fork: a forked child of a process with threads or CUDA may hang or crash.
    return ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), _prepare_worker, (packed,)
    )


def _prepare_worker(packed: bytes) -> None:
    # One thread per worker, as the processes provide the parallelism. The variables must be set
    # before a numeric library is loaded.
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"
    # Ctrl-C reaches the whole process group; the parent decides how to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    _state["featurizer"] = pickle.loads(packed)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def _exit_with_parent() -> None:
    """Exit when the parent process dies."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _featurize(clip: Clip) -> Result:
    try:
        return _state["featurizer"](clip)
    except DataError as error:
        return str(error)

"""Run one trial: a short training with a set of optimizations, in its own process."""

import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
import torch

from trainer.callbacks.step_timer import OptimizerTimer
from trainer.config.resolve import Entries, resolve
from trainer.core.atomic_io import write_atomic
from trainer.core.device import GIB
from trainer.core.errors import TimbreError
from trainer.core.events import Event, Notice
from trainer.core.run_config import RunConfig
from trainer.core.train_state import TrainState, World
from trainer.core.types import Batch
from trainer.data.features.dataset import Dataset, prepare_dataset
from trainer.profiling.benchmark.memory import peak_on_cpu
from trainer.profiling.measurements import Trial
from trainer.profiling.memory_estimate import count_step
from trainer.profiling.synthetic_batches import (
    make_synthetic,
    make_synthetic_clips,
    spread_lengths,
    synthetic_spec_of,
)
from trainer.state.probe import probe
from trainer.state.weights import evaluation_weights, trained_weights
from trainer.training.assemble import (
    build_train_state,
    check_before_start,
    describe_start,
    seed_everything,
    take_device,
)
from trainer.training.loop import train_step

_BATCHES = 4
"""Batches of synthetic clips: enough that lengths vary, few enough to build quickly."""


@dataclass(frozen=True)
class TrialJob:
    """The task of a child process: the trial, its configuration and its time limits."""

    row: dict[str, Any]
    config: dict[str, Any]
    size: str
    lengths: str
    warm_up: int
    least_steps: int
    most_steps: int
    timed_s: float
    deadline_s: float


def run_trial(job_path: Path, out: Path) -> int:
    """Run a trial and write its result; the exit code is 0 even if it was refused."""
    job = TrialJob(**json.loads(job_path.read_text(encoding="utf-8")))
    row = Trial(**job.row)
    try:
        with _ended_after(job.deadline_s):
            _measure(job, row, lambda: _write(row, out))
    except TimbreError as error:
        # An expected answer, such as an optimization that this GPU lacks, not a crash.
        row.state, row.reason = "refused", str(error)
    except torch.OutOfMemoryError as error:
        row.state, row.reason = "failed", f"out of memory: {str(error).splitlines()[0]}"
    _write(row, out)
    return 0


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End this process 10 s after its deadline, in case the process waiting for it was killed."""
    can_end = hasattr(signal, "alarm")
    # The parent kills the child at the deadline; 10 s later it must be gone itself.
    if can_end:
        signal.alarm(int(seconds) + 10)
    try:
        yield
    finally:
        if can_end:
            signal.alarm(0)


def _write(row: Trial, out: Path) -> None:
    # The parent may kill this process at any time and must not read half a file.
    write_atomic(out, json.dumps(asdict(row)))


def _measure(job: TrialJob, row: Trial, publish: Callable[[], None]) -> None:
    started = time.perf_counter()
    config = RunConfig.from_json(job.config)
    _disable_tf32()
    check_before_start(config)
    seed_everything(config.training.seed)
    entries = resolve(config)
    with tempfile.TemporaryDirectory() as folder:
        dataset = _make_dataset(job, config, entries, Path(folder))
        state = _make_train_state(config, entries, dataset, Path(folder), row)
        try:
            first = state.train_batches.micro_batches(1)[0].to(state.device)
            row.on = describe_start(state, probe(state, first)).optimizations
            row.start_s = round(time.perf_counter() - started, 2)
            _time_steps(job, state, row)
            # Publish now: the estimate below may run into the deadline.
            row.state = "done"
            publish()
            _predict(config, entries, dataset, state, row)
        finally:
            state.train_batches.close()
            if state.val_batches is not None:
                state.val_batches.close()


def _disable_tf32() -> None:
    """Turn TF32 off (cuDNN's is on by default), so that only the optimizations change precision."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def _make_dataset(job: TrialJob, config: RunConfig, entries: Entries, folder: Path) -> Dataset:
    data = config.data
    if data.train_csv or data.train_data:
        return prepare_dataset(
            folder, config, entries.family, entries.family_options, lambda event: None
        )
    longest, count = synthetic_spec_of(entries).longest_s, _BATCHES * config.training.batch_size
    spread = spread_lengths(longest, count, config.training.seed)
    lengths = [longest] * count if job.lengths == "longest" else spread
    return make_synthetic(config, entries, make_synthetic_clips(lengths), job.size)


def _make_train_state(
    config: RunConfig, entries: Entries, dataset: Dataset, folder: Path, row: Trial
) -> TrainState:
    machine = take_device(config.training.device)
    base = Path(config.base) if config.base else None
    model = entries.family.load(base, entries.family_options, dataset.corpus.facts)
    model = model.to(torch.device(machine.torch_name))
    state = build_train_state(
        folder, config, entries, dataset, model=model, machine=machine, world=World()
    )
    # The same order as in `assemble`: all are applied before the first is finalized.
    for optimization, options in entries.optimizations:
        optimization.apply(state, options)

    def note(event: Event) -> None:
        if isinstance(event, Notice):
            row.notes.append(event.text)

    for optimization, options in entries.optimizations:
        if optimization.finalize is not None:
            optimization.finalize(state, options, note)
    return state


def _time_steps(job: TrialJob, state: TrainState, row: Trial) -> None:
    """Train, and record what a step takes after the warm-up steps."""
    stopwatch, clock = OptimizerTimer(state.optimizer, state.device), _Clock(state.device)
    first = state.first_step
    for step in range(first, first + job.warm_up):
        train_step(state, step)
    # All trials are compared after the same steps on the same clips: it shows what rounding does.
    row.loss, row.loss_after = _evaluate_first_batches(state), job.warm_up
    _start_watching_memory(state)
    laps, began, step = [], time.perf_counter(), first + job.warm_up
    # The first tick only marks the start, so that n steps give n spans.
    clock.tick()
    while not laps or _wants_more(job, len(laps), time.perf_counter() - began):
        train_step(state, step)
        clock.tick()
        # Read later: a lap is a pair of events, and reading one would make the host wait.
        laps.append(stopwatch.take())
        step += 1
    spans, cpu_spans = clock.spans()
    row.steps, row.warm_up = len(spans), job.warm_up
    # Medians, because single steps are disturbed by other programs and Python's collector.
    row.s_per_step, row.cpu_s_per_step = median(spans), median(cpu_spans)
    if len(spans) > 1:
        # Inclusive: the exclusive method extrapolates beyond the data when there are few steps.
        row.s_p10, *_, row.s_p90 = quantiles(spans, n=10, method="inclusive")
    known = [lap.seconds() for lap in laps if lap is not None]
    row.optimizer_s = median(known) if known else None
    _note_memory(state, row)
    _note_sizes(state, row, range(first + job.warm_up, step))


def _wants_more(job: TrialJob, done: int, seconds: float) -> bool:
    """Return whether to time another step: always up to the minimum, then while time is left."""
    return done < job.least_steps or (done < job.most_steps and seconds < job.timed_s)


def _start_watching_memory(state: TrainState) -> None:
    # After the warm-up, so that autotuning and compilation don't count.
    if state.device.type == "cuda":
        torch.cuda.synchronize(state.device)
        torch.cuda.reset_peak_memory_stats(state.device)


class _Clock:
    """Marks the ends of steps; on a GPU with events in its queue, so that nothing waits."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._marks: list[float] = []
        self._cpu_marks: list[float] = []

    def tick(self) -> None:
        """Mark the end of a step."""
        self._cpu_marks.append(time.process_time())
        self._marks.append(time.perf_counter())
        if self._device.type == "cuda":
            self._events.append(torch.cuda.Event(enable_timing=True))
            self._events[-1].record()

    def spans(self) -> tuple[list[float], list[float]]:
        """Return the seconds between marks: elapsed time and CPU time."""
        seconds = [after - before for before, after in pairwise(self._marks)]
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            pairs = pairwise(self._events)
            seconds = [before.elapsed_time(after) / 1000 for before, after in pairs]
        return seconds, [after - before for before, after in pairwise(self._cpu_marks)]


@torch.no_grad()
def _evaluate_first_batches(state: TrainState) -> float:
    """Return the loss of the first step's batches with the current weights, without dropout."""
    total = 0.0
    with evaluation_weights(state):
        for host_batch in state.train_batches.micro_batches(state.first_step):
            with state.precision.autocast(state.device):
                losses = state.family.losses(state.model, host_batch.to(state.device))
            total += float(torch.stack(list(losses.values())).sum())
    return total


def _note_memory(state: TrainState, row: Trial) -> None:
    if state.device.type == "cuda":
        row.peak_gib = torch.cuda.max_memory_allocated(state.device) / GIB
        row.reserved_gib = torch.cuda.max_memory_reserved(state.device) / GIB
        row.peak_is = "torch.cuda.max_memory_allocated"
        # A retry means that the allocator emptied its cache, so the step time is not typical.
        retries = torch.cuda.memory_stats(state.device).get("num_alloc_retries", 0)
        if retries:
            row.notes.append(f"the allocator retried {retries} times")
        return
    row.resident_gib = psutil.Process().memory_info().rss / GIB
    # After the timed steps, because the profiler makes a step much slower.
    largest, _ = _largest(state)
    row.peak_gib = peak_on_cpu(state, largest) / GIB
    row.peak_is = "most bytes PyTorch's CPU allocator held in the step of the largest batch"


def _note_sizes(state: TrainState, row: Trial, steps: range) -> None:
    """Record how much was computed: positions, padding and parameters."""
    real = padded = 0.0
    name = next(iter(_totals(state, steps[0])), "")
    # A few steps suffice for an average; building batches again takes time.
    for step in steps[: 2 * _BATCHES]:
        batches = state.train_batches.micro_batches(step)
        real += batches[0].totals.get(name, 0.0)
        padded += sum(_padded(batch) for batch in batches)
    count = len(steps[: 2 * _BATCHES])
    row.positions = real / count
    row.padded_ratio = padded / real if real else None
    row.parameters = sum(value.numel() for value in state.model.parameters())
    row.trained = sum(value.numel() for value in trained_weights(state).values())


def _largest(state: TrainState) -> tuple[int, Batch]:
    """Return the step and the batch of the largest of the first batches."""
    steps = range(state.first_step, state.first_step + 2 * _BATCHES)
    found = [(step, batch) for step in steps for batch in state.train_batches.micro_batches(step)]
    return max(found, key=lambda pair: sum(value.nbytes for value in pair[1].tensors.values()))


def _totals(state: TrainState, step: int) -> dict[str, float]:
    totals = state.train_batches.micro_batches(step)[0].totals
    # Clips are counted too, but the cost of a step follows from positions such as frames.
    return {name: value for name, value in totals.items() if name != "clips"}


def _padded(batch: Batch) -> float:
    """Return the positions in the largest mask of a batch, which is what the network computes."""
    masks = [value.numel() for value in batch.tensors.values() if value.dtype == torch.bool]
    return float(max(masks, default=0))


def _predict(
    config: RunConfig, entries: Entries, dataset: Dataset, state: TrainState, row: Trial
) -> None:
    """Record the estimated memory and the FLOPs of the same batches."""
    _, largest = _largest(state)
    # Some operators don't run on fake tensors; the measured values stay valid without an estimate.
    with suppress(RuntimeError):
        found = count_step(config, entries, dataset, largest, state.machine)
        row.predicted_gib = None if found.left_out else found.peak_gib
        padded = (row.positions or 0.0) * (row.padded_ratio or 0.0)
        # Scale from the largest batch to the average step; FLOPs grow about with the positions.
        row.flops = found.flops * padded / (_padded(largest) or 1.0)

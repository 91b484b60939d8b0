"""Torture: real small runs that are killed, starved of disk and memory, fed NaN and abandoned.

python -m benchmarks.torture --minutes 10 [--jobs 2] [--seed 1] [--folder DIR] [--out FILE.json]
trains the small FastSpeech 2 on ten clips of the demo with every optimizer in turn, with
accumulated gradients and averaged weights, and does to it what happens to runs. Each run is
compared with one that nothing disturbs. It prints a table and ends with 1 if anything was lost that
must not be.
"""

import argparse
import csv
import hashlib
import json
import math
import os
import platform
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

# The parent only forks: it never runs an operation of torch, whose threads no child would have. It
# imports what its children need, since each of them lives for seconds only.
import pandas  # noqa: F401
import torch
import torch._dynamo
from safetensors.torch import load_file
from torch import Tensor

import trainer.training.loop
import trainer.worker.training_process
from tests.helpers.toy import OPTIMIZERS
from trainer.checkpoints.checkpoint import newest_checkpoint, newest_step
from trainer.config.resolve import find_optimizer
from trainer.core import metrics
from trainer.core.events import CheckpointSaved, Notice, ResumeVerified, RunAdapted
from trainer.core.registry import discover
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.core.specs import ModelFamily, Optimization, OptimizerSpec
from trainer.core.train_state import TrainState
from trainer.models._layers.dropout import Dropout
from trainer.runs.run import Run
from trainer.runs.run_store import RunStore

DEMO = Path(__file__).parent.parent / "assets" / "demo"
STEPS, SAVE_EVERY, ACCUMULATE = 15, 3, 2
CLIPS, BATCH = 10, 2
PER_STEP = 1e-6
"""Relative distance of weights that a step may add when memory ran out."""
CHAOTIC = {"soap", "soap_ademamix"}
"""They work in eigenvectors, which rounding turns freely where eigenvalues are alike. The loss and
the gradient norm of the first step are compared instead of weights."""
_PATIENCE_S = 240.0
_CATALOGS = (
    ("trainer.models", ModelFamily),
    ("trainer.optimizers", OptimizerSpec),
    ("trainer.optimizations", Optimization),
)

Fault = Callable[[TrainState], None]


@dataclass
class Trial:
    """What was done to one run and what came of it; `detail` tells what went wrong."""

    kind: str
    optimizer: str
    faults: int
    survived: int
    steps_lost: int = 0
    too_many_lost: bool = False
    bytes_corrupted: int = 0
    verified_steps: int = 0
    difference: float | None = None
    is_good: bool = False
    seconds: float = 0.0
    detail: str = ""


# Faults that a run brings upon itself, inside its process


def kill_at_micro_step(count: int) -> Fault:
    """Kill the process in the middle of its n-th micro-step (the first is the probe's)."""

    def arm(state: TrainState) -> None:
        left = [count]

        def before(batch: Any) -> None:
            left[0] -= 1
            if left[0] == 0 and torch.is_grad_enabled():
                os.kill(os.getpid(), signal.SIGKILL)

        _watch_losses(state, before, None)

    return arm


def draw_nothing(state: TrainState) -> None:
    """Switch dropout off: it draws other numbers when a batch is cut, and weights follow those."""
    for module in state.model.modules():
        if isinstance(module, Dropout):
            module.share = 0.0


def run_out_of_memory(most_clips: int) -> Fault:
    """Raise torch's error for every micro-batch of more clips; dropout is off."""

    def arm(state: TrainState) -> None:
        draw_nothing(state)

        def before(batch: Any) -> None:
            if len(batch.clip_ids) > most_clips:
                raise torch.OutOfMemoryError(f"made up: {len(batch.clip_ids)} clips do not fit")

        _watch_losses(state, before, None)

    return arm


def lose_numbers(first: int, last: int, *, until_back: bool) -> Fault:
    """Make the losses of some steps NaN; `until_back`: only before the run has gone back once."""

    def arm(state: TrainState) -> None:
        now = _watch_steps(state)

        def after(found: dict[str, Tensor]) -> dict[str, Tensor]:
            is_over = until_back and state.adapted.rollbacks > 0
            if not first <= now[0] <= last or is_over or not torch.is_grad_enabled():
                return found
            return {name: value * math.nan for name, value in found.items()}

        _watch_losses(state, lambda batch: None, after)

    return arm


def fill_disk(first: int, last: int) -> Fault:
    """Let no file grow beyond 2 KiB during some steps, so that saves and the log fail."""

    def arm(state: TrainState) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        now = _watch_steps(state)

        def before(batch: Any) -> None:
            limit = 2048 if first <= now[0] <= last else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

        _watch_losses(state, before, None)

    return arm


def _watch_losses(
    state: TrainState,
    before: Callable[[Any], None],
    after: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None,
) -> None:
    losses = state.family.losses

    def watched(model: Any, batch: Any) -> dict[str, Tensor]:
        before(batch)
        found = losses(model, batch)
        return after(found) if after is not None else found

    state.family = replace(state.family, losses=watched)


def _watch_steps(state: TrainState) -> list[int]:
    """Return a list that holds the number of the step under way."""
    now, of_step = [0], state.train_batches.micro_batches

    def watched(step: int) -> Any:
        now[0] = step
        return of_step(step)

    state.train_batches.micro_batches = watched  # type: ignore[method-assign]
    return now


# Processes


def start(folder: Path, fault: Fault | None = None) -> int:
    """Train a run in a child process and return its id."""
    child = os.fork()
    if child:
        return child
    code = 99
    with suppress(BaseException):
        os.setsid()
        with (folder / "child.txt").open("ab") as log:
            for descriptor in (1, 2):
                os.dup2(log.fileno(), descriptor)
        torch.set_num_threads(1)
        if fault is not None:
            _arm(fault)
        code = trainer.worker.training_process.continue_run(Run.open(folder))
    os._exit(code)


def _arm(fault: Fault) -> None:
    assemble = trainer.worker.training_process.assemble

    def assemble_and_arm(*arguments: Any, **options: Any) -> TrainState:
        state = assemble(*arguments, **options)
        fault(state)
        return state

    trainer.worker.training_process.assemble = assemble_and_arm


def end_of(child: int, within_s: float = _PATIENCE_S) -> int:
    """Return the exit code of a child, negative for a signal; one that hangs is killed."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 98


def in_child(deed: Callable[[], Any]) -> Any:
    """Return what a deed returns in a child process, as JSON: it may use torch."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        torch.set_num_threads(1)
        with suppress(BaseException), os.fdopen(writer, "w") as file:
            file.write(json.dumps(deed()))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


# What came of a run


def digest(folder: Path) -> str:
    """Hash every tensor and number of a run's last checkpoint, but for the seconds trained."""
    found, _ = newest_checkpoint(folder / "checkpoints")
    assert found is not None
    state = torch.load(found / "state.pt", weights_only=True)
    state["progress"].pop("trained_s", None)
    state["progress"].pop("skipped_in_a_row", None)
    hashed = hashlib.sha256()
    _hash_into(hashed, {"weights": load_file(found / "model.safetensors"), "state": state})
    return hashed.hexdigest()


def _hash_into(hashed: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        hashed.update(f"{value.dtype}{tuple(value.shape)}".encode())
        hashed.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            hashed.update(str(key).encode())
            _hash_into(hashed, value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            _hash_into(hashed, item)
    else:
        hashed.update(repr(value).encode())


def distance(folder: Path, other: Path) -> float:
    """Return how far the weights of two runs lie apart, relative to their size."""
    found = []
    for each in (folder, other):
        newest, _ = newest_checkpoint(each / "checkpoints")
        assert newest is not None
        weights = load_file(newest / "model.safetensors")
        found.append(torch.cat([weights[name].double().reshape(-1) for name in sorted(weights)]))
    return float((found[0] - found[1]).norm() / found[1].norm())


def _first_difference(run: Run, other: Run) -> float:
    """Return the relative difference of loss and gradient norm at the first step of two runs."""
    columns = [each.series().steps.columns for each in (run, other)]
    return max(
        abs(columns[0][name][0] / columns[1][name][0] - 1)
        for name in (metrics.TRAIN_LOSS, metrics.GRAD_NORM)
    )


def corrupted_bytes(folder: Path) -> int:
    """Return the size of all published checkpoints that do not verify."""
    total = 0
    for each in (folder / "checkpoints").glob("*step-*"):
        if each.name.startswith("."):
            continue
        is_damaged = each.name.startswith("damaged")
        if is_damaged or each.name in " ".join(newest_checkpoint(each.parent)[1]):
            total += sum(path.stat().st_size for path in each.iterdir())
    return total


def note_loss(trial: Trial, run: Run) -> None:
    """Note how many steps the process that just died had done since its last checkpoint."""
    newest = newest_step(run.folder / "checkpoints") or 0
    told = [e.event.step for e in run.events.follow() if isinstance(e.event, CheckpointSaved)]
    lost = run.series().last_step - newest
    trial.steps_lost = max(trial.steps_lost, lost)
    # A save may be under way while the next steps are done; what was told is never lost.
    trial.too_many_lost |= newest < max(told, default=0)
    trial.bytes_corrupted += corrupted_bytes(run.folder)


# Trials


class Torture:
    """Runs and what they are compared with, in a folder of its own."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.rng = folder, random.Random(seed)
        self._references: dict[str, Path] = {}

    def config(self, optimizer: str) -> RunConfig:
        training = TrainingConfig(
            steps=STEPS, batch_size=BATCH, accumulate=ACCUMULATE, ema_decay=0.9, device="cpu",
            save_every=f"{SAVE_EVERY} steps", validate_every="6 steps", preview_every="never",
        )  # fmt: skip
        schedules = find_optimizer(optimizer).schedules
        return RunConfig(
            data=DataConfig(train_csv=str(self.folder / "train.csv"), eval_fraction=0.2),
            training=training,
            family=Choice("fastspeech2", {"size": "small"}),
            optimizer=Choice(optimizer),
            schedule=Choice(schedules[0] if schedules else "cosine"),
        )

    def make(self, optimizer: str, kind: str) -> Run:
        for number in range(1000):
            folder = self.folder / "runs" / f"{optimizer}-{kind}-{number}-{os.getpid()}"
            if not folder.exists():
                return Run.create(folder, self.config(optimizer))
        raise AssertionError("too many runs")

    def reference(self, optimizer: str, fault: Fault | None = None) -> Path:
        """Return a run that nothing disturbs (but a harmless `fault`), made at the first call."""
        key = f"{optimizer}-{'calm' if fault else 'whole'}"
        if key not in self._references:
            run = self.make(optimizer, key.partition("-")[2])
            code = end_of(start(run.folder, fault))
            assert code == 0, (run.folder, code)
            self._references[key] = run.folder
        return self._references[key]

    def finish(self, trial: Trial, run: Run, *, exact: bool = True) -> Trial:
        """Let a run come to its end undisturbed and compare it."""
        for _ in range(3):
            if run.status().state == "finished" or end_of(start(run.folder)) == 0:
                break
        trial.bytes_corrupted += corrupted_bytes(run.folder)
        verified = [e.event for e in run.events.follow() if isinstance(e.event, ResumeVerified)]
        trial.verified_steps = sum(event.num_steps for event in verified)
        is_verified = all(event.difference == 0 for event in verified)
        if run.status().state != "finished":
            trial.detail = f"{run.status().state}: {run.status().reason}"[:300]
        elif exact:
            reference = self.reference(trial.optimizer)
            expected = in_child(lambda: digest(reference))
            is_equal = in_child(lambda: digest(run.folder)) == expected
            trial.difference = (
                0.0 if is_equal else in_child(lambda: distance(run.folder, reference))
            )
            trial.is_good = is_equal and is_verified
            trial.detail = "" if trial.is_good else f"not equal (verified: {is_verified})"
        trial.is_good &= not trial.too_many_lost and trial.bytes_corrupted == 0
        if trial.is_good:
            shutil.rmtree(run.folder)
        return trial

    def kill(self, optimizer: str) -> Trial:
        """Kill a run at random micro-steps and at random instants, then let it finish."""
        run, trial = self.make(optimizer, "kill"), Trial("kill", optimizer, 0, 0)
        for _ in range(self.rng.randint(2, 3)):
            done = newest_step(run.folder / "checkpoints") or 0
            left = (STEPS - done) * ACCUMULATE
            if self.rng.random() < 0.6:
                child = start(run.folder, kill_at_micro_step(self.rng.randint(1, max(1, left))))
            else:
                child = start(run.folder)
                self._wait_for_a_step(run, child, done)
                time.sleep(self.rng.uniform(0.0, 1.5))
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            if end_of(child) != -signal.SIGKILL:
                break
            trial.faults += 1
            note_loss(trial, run)
        trial = self.finish(trial, run)
        trial.survived = trial.faults * trial.is_good
        return trial

    def disk(self, optimizer: str) -> Trial:
        """Fill the disk for some steps: saves and the log fail, training goes on."""
        run, first = self.make(optimizer, "disk"), self.rng.randint(2, 8)
        end_of(start(run.folder, fill_disk(first, first + 4)))
        failed = [
            each.event
            for each in run.events.follow()
            if isinstance(each.event, Notice) and "could not be saved" in each.event.text
        ]
        steps = list(run.series().steps.columns["step"])
        trial = self.finish(Trial("disk full", optimizer, max(1, len(failed)), 0), run)
        if not failed or steps != list(range(1, STEPS + 1)):
            trial.is_good, trial.detail = False, f"{len(failed)} saves failed; steps {steps}"
        trial.survived = trial.faults * trial.is_good
        return trial

    def memory(self, optimizer: str) -> Trial:
        """Let memory run out above one clip: micro-batches are cut, the effective batch stays."""
        run = self.make(optimizer, "memory")
        fault = run_out_of_memory(1)
        end_of(start(run.folder, fault))
        cuts = [e.event for e in run.events.follow() if isinstance(e.event, RunAdapted)]
        kind = "out of memory, eigenvectors" if optimizer in CHAOTIC else "out of memory"
        trial = self.finish(Trial(kind, optimizer, max(1, len(cuts)), 0), run, exact=False)
        reference = self.reference(optimizer, draw_nothing)
        if run.status().state == "finished":
            trial.difference = in_child(lambda: distance(run.folder, reference))
            per_step = (trial.difference or 0.0) / STEPS
            if optimizer in CHAOTIC:
                per_step = _first_difference(run, Run.open(reference))
            trial.is_good = bool(cuts) and per_step <= PER_STEP and not trial.bytes_corrupted
            trial.detail = "" if trial.is_good else f"{per_step:.1e} a step, {len(cuts)} cuts"
        trial.survived = trial.faults * trial.is_good
        return trial

    def numbers(self, optimizer: str) -> Trial:
        """Make losses NaN: for a step, or until the run goes back."""
        run, first = self.make(optimizer, "nan"), self.rng.randint(4, 9)
        is_long = self.rng.random() < 0.5
        last = first + (5 if is_long else 0)
        code = end_of(start(run.folder, lose_numbers(first, last, until_back=is_long)))
        events = [logged.event for logged in run.events.follow()]
        skipped = sum(isinstance(e, Notice) and "was skipped" in e.text for e in events)
        went_back = sum(isinstance(e, RunAdapted) and e.rollbacks for e in events)
        trial = Trial("nan", optimizer, max(1, skipped), 0)
        trial.bytes_corrupted = corrupted_bytes(run.folder)
        is_finite = in_child(lambda: math.isfinite(distance(run.folder, run.folder)))
        trial.is_good = code == 0 and bool(is_finite) and bool(went_back) == is_long and skipped > 0
        if not trial.is_good:
            trial.detail = f"code {code}, {skipped} left out, went back {went_back}"
        trial.survived = trial.faults * trial.is_good
        return trial

    def clients(self, optimizer: str) -> Trial:
        """Kill readers of the log while a run trains."""
        run, trial = self.make(optimizer, "clients"), Trial("client dropped", optimizer, 0, 0)
        child = start(run.folder)
        while trial.faults < 5:
            reader = os.fork()
            if not reader:
                for _ in run.follow(poll_s=0.01):
                    run.status()
                os._exit(0)
            time.sleep(self.rng.uniform(0.05, 0.4))
            os.kill(reader, signal.SIGKILL)
            os.waitpid(reader, 0)
            trial.faults += 1
        end_of(child)
        trial = self.finish(trial, run)
        trial.survived = trial.faults * trial.is_good
        return trial

    def server(self, optimizer: str) -> Trial:
        """Kill what a web server holds of a run it started; another one attaches to it."""
        run, trial = self.make(optimizer, "server"), Trial("server killed", optimizer, 1, 0)
        server = os.fork()
        if not server:
            RunStore(run.folder.parent).resume(run.name)
            time.sleep(_PATIENCE_S)
            os._exit(0)
        deadline = time.monotonic() + _PATIENCE_S
        while run.series().last_step < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        while run.status().is_active and time.monotonic() < deadline:
            time.sleep(0.1)
        steps = list(run.series().steps.columns.get("step", []))
        trial = self.finish(trial, run)
        if steps != list(range(1, STEPS + 1)):
            trial.is_good, trial.detail = False, f"the curve has a gap: {steps}"
        trial.survived = trial.faults * trial.is_good
        return trial

    def _wait_for_a_step(self, run: Run, child: int, done: int) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while run.series().last_step <= done and time.monotonic() < deadline:
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
            time.sleep(0.02)


def trials(torture: Torture, job: int, jobs: int) -> Iterator[Callable[[], Trial]]:
    """Yield trials for ever: kills of every optimizer, and among them all else in turn.

    Jobs share the optimizers: each begins with its own.
    """
    others = [
        torture.disk, torture.memory, torture.numbers, torture.clients, torture.kill,
        torture.memory, torture.numbers, torture.server,
    ]  # fmt: skip
    own = OPTIMIZERS[job::jobs]
    names = own + [name for name in OPTIMIZERS if name not in own]
    turn = job
    while True:
        for name in names:
            yield lambda name=name: torture.kill(name)
            other = others[turn % len(others)]
            turn += 1
            yield lambda name=name, other=other: other(name)
        names = names[1:] + names[:1]


def work(folder: Path, args: argparse.Namespace, job: int, until: float) -> None:
    """Do trials until a moment of the monotonic clock, a line of a file for each."""
    torture = Torture(folder, args.seed + job)
    with (folder / f"{job}.jsonl").open("a", encoding="utf-8") as file:
        for deed in trials(torture, job, args.jobs):
            if time.monotonic() > until:
                return
            began = time.monotonic()
            trial = deed()
            trial.seconds = round(time.monotonic() - began, 2)
            file.write(json.dumps(asdict(trial)) + "\n")
            file.flush()
            state = "good" if trial.is_good else f"BAD {trial.detail}"
            print(
                f"{trial.optimizer:22} {trial.kind:15} {trial.faults} faults  {state}", flush=True
            )


def write_clips(folder: Path) -> None:
    """Write a list of the shortest clips of the demo."""
    with (DEMO / "train.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = list(csv.reader(file, delimiter="|"))
    rows.sort(key=lambda row: (DEMO / row[0]).stat().st_size)
    lines = ["|".join(header)] + ["|".join([str(DEMO / row[0]), *row[1:]]) for row in rows[:CLIPS]]
    (folder / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def summarize(found: list[Trial]) -> list[dict[str, Any]]:
    """Return a row for each kind of fault."""
    rows = []
    for kind in dict.fromkeys(trial.kind for trial in found):
        mine = [trial for trial in found if trial.kind == kind]
        differences = [trial.difference for trial in mine if trial.difference is not None]
        rows.append({
            "fault": kind,
            "runs": len(mine),
            "optimizers": len({trial.optimizer for trial in mine}),
            "injected": sum(trial.faults for trial in mine),
            "survived": sum(trial.survived for trial in mine),
            "most_steps_lost": max(trial.steps_lost for trial in mine),
            "told_checkpoints_lost": sum(trial.too_many_lost for trial in mine),
            "bytes_corrupted": sum(trial.bytes_corrupted for trial in mine),
            "steps_verified_at_resume": sum(trial.verified_steps for trial in mine),
            "largest_difference": max(differences, default=None),
            "good_runs": sum(trial.is_good for trial in mine),
        })  # fmt: skip
    return rows


def main() -> int:
    """Torture for the minutes asked for, print the table and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torture")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="timbre-torture-"))
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"TIMBRE_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    write_clips(folder)
    for package, kind in _CATALOGS:
        discover(package, kind)
    began = time.monotonic()
    # Features and survey are computed once; then every job finds them.
    Torture(folder, args.seed).reference("adamw")
    jobs = []
    for job in range(args.jobs):
        child = os.fork()
        if not child:
            try:
                work(folder, args, job, began + 60 * args.minutes)
            except BaseException as error:
                print(f"job {job} failed: {error!r}", file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        jobs.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in jobs]
    found = [
        Trial(**json.loads(line))
        for job in range(args.jobs)
        for line in (folder / f"{job}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    rows = summarize(found)
    is_good = not any(codes) and all(trial.is_good for trial in found)
    report(rows, found, args, time.monotonic() - began, is_good)
    if args.folder is None and is_good:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if is_good else 1


def report(
    rows: list[dict[str, Any]], found: list[Trial], args: Any, seconds: float, is_good: bool
) -> None:
    """Print the table and what was not good, and write both if asked to."""
    names = list(rows[0]) if rows else []
    print(" | ".join(names))
    for row in rows:
        print(" | ".join("-" if row[name] is None else str(row[name]) for name in names))
    for trial in found:
        if not trial.is_good:
            print(f"NOT GOOD: {trial.kind}, {trial.optimizer}: {trial.detail}")
    result = {
        "command": f"python -m benchmarks.torture --minutes {args.minutes:g} --jobs {args.jobs} "
        f"--seed {args.seed}",
        "seconds": round(seconds),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python "
        f"{platform.python_version()}, torch {torch.__version__}",
        "run": f"FastSpeech 2 small, {STEPS} steps, {BATCH} clips x {ACCUMULATE}, EMA 0.9, a "
        f"checkpoint every {SAVE_EVERY} steps",
        "optimizers": sorted({trial.optimizer for trial in found}),
        "all_good": is_good,
        "rows": rows,
        "not_good": [asdict(trial) for trial in found if not trial.is_good],
    }
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())

"""Run the trials of a benchmark one after another, each in a child process with a deadline."""

import json
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

import psutil
import torch

from trainer.config.resolve import resolve
from trainer.core.child_process import (
    child_environment,
    end_child,
    start_child,
    trainer_command,
)
from trainer.core.device import Device
from trainer.profiling.benchmark.goals import plan_goals
from trainer.profiling.benchmark.peaks import peak_flops
from trainer.profiling.benchmark.plan import (
    AGAIN,
    ALL,
    FIRST,
    BenchmarkPlan,
    plan_trials,
    trial_of_all,
)
from trainer.profiling.benchmark.trial import TrialJob
from trainer.profiling.measurements import Measurement, Trial
from trainer.profiling.synthetic_batches import synthetic_spec_of
from trainer.training.assemble import choose_device

_POLL_S = 0.1
# The constants below were chosen by hand.
_LEAST_S = 20.0
"""Minimum time left to start a trial (and at least 3/4 of the usual duration): a trial that hits
its deadline has wasted its time."""

_KEPT_FREE = {ALL: 1.0, AGAIN: 0.0}
_USUALLY_KEPT_FREE = 5.0
"""Time reserved for the two trials that must not be missing (all optimizations together, and the
baseline again), in usual durations of a trial."""

_SHARE_TIMED = 0.25
"""Share of a trial's fair time that its timed steps may take; the rest is start-up and warm-up."""


class Benchmark:
    """A running benchmark; `measurement` fills up as trials finish."""

    def __init__(self, plan: BenchmarkPlan) -> None:
        self.plan = plan
        self.device = choose_device(plan.config.training.device)
        self.measurement = Measurement(
            command=plan.command,
            machine=describe_machine(self.device),
            model=_describe_model(plan),
            made_at=time.strftime("%Y-%m-%d %H:%M"),
        )
        self._is_cancelled = False
        self._started = time.monotonic()
        self._taken: list[float] = []

    def cancel(self) -> None:
        """Cancel the current trial and all later ones; finished ones are kept."""
        self._is_cancelled = True

    def trials(self) -> Iterator[Trial]:
        """Run and yield one trial after another; those without time left are yielded as skipped."""
        planned, notes = plan_trials(self.device, self.plan.config.optimizations)
        planned = self._with_goals(planned)
        # Two more than planned: all optimizations together, and the baseline again.
        self.measurement.model |= {"left_out": notes, "planned": len(planned) + 2}
        for place, row in enumerate(planned):
            yield self._finish(row, left=len(planned) - place + 2)
        measured = self.measurement.rows
        last = trial_of_all(self.device, measured)
        # If a single trial already had this combination, don't measure it twice.
        known = next((row for row in measured if row.boxes == last.boxes and not row.changes), None)
        if known is not None:
            known.groups.append("all")
            known.notes += last.notes
        else:
            yield self._finish(last, left=2)
        # Last, so that a machine that got hot or busy in between shows up as a difference.
        yield self._finish(Trial(AGAIN, "fp32 again, to show noise", ["noise"], {}), left=1)
        self.measurement.state = "cancelled" if self._is_cancelled else "finished"
        self.measurement.seconds = round(time.monotonic() - self._started, 1)

    def _with_goals(self, planned: list[Trial]) -> list[Trial]:
        """Insert the trials of the goals before the many trials of single optimizations."""
        has_goals = self.device.kind == "cuda" if self.plan.goals is None else self.plan.goals
        goals = plan_goals(self.device) if has_goals else []
        is_single = [row.groups == ["alone"] for row in planned]
        place = is_single.index(True) if True in is_single else len(planned)
        return planned[:place] + goals + planned[place:]

    def _finish(self, row: Trial, *, left: int) -> Trial:
        found = self._carry_out(row, left)
        _compare(found, self.measurement.trial(FIRST), self.device)
        self.measurement.rows.append(found)
        return found

    def _carry_out(self, row: Trial, left: int) -> Trial:
        remaining_s = 60 * self.plan.minutes - (time.monotonic() - self._started)
        needed_s = max(_LEAST_S, 0.75 * median(self._taken)) if self._taken else 0.0
        if self._is_cancelled or remaining_s - self._kept_free_s(row) < needed_s:
            row.state = "cancelled" if self._is_cancelled else "skipped"
            row.reason = "" if self._is_cancelled else "no time left"
            return row
        fair_s = remaining_s / left
        usable_s = remaining_s - self._kept_free_s(row)
        # Compilation time doesn't depend on the step time, so it may use all that is left.
        most_s = usable_s if "compile" in row.boxes else min(2 * self._usual_s, usable_s)
        deadline_s = self._deadline(remaining_s, fair_s, left, most_s)
        began = time.monotonic()
        found = self._run_child(row, deadline_s, _SHARE_TIMED * fair_s)
        # A refused trial ends at once and would make the usual duration look too short.
        if found.is_done or not self._taken:
            self._taken.append(time.monotonic() - began)
        return found

    def _kept_free_s(self, row: Trial) -> float:
        """Return the seconds a trial must leave for those that must not be missing."""
        return _KEPT_FREE.get(row.name, _USUALLY_KEPT_FREE) * self._usual_s

    @property
    def _usual_s(self) -> float:
        return median(self._taken) if self._taken else 0.0

    def _deadline(self, remaining_s: float, fair_s: float, left: int, most_s: float) -> float:
        """Return a trial's deadline in seconds: more than its share, but not what others need.

        If time is short, `most_s` still applies: fewer trials are better than none that finishes.
        """
        if not self._taken:
            # Everything is compared with the first trial, so it may take most of the time; 60 % is
            # chosen by hand.
            return 0.6 * remaining_s
        for_others_s = (left - 1) * self._usual_s
        spare_s = min(3 * fair_s, max(fair_s, remaining_s - for_others_s))
        return max(spare_s, most_s)

    def _run_child(self, row: Trial, deadline_s: float, timed_s: float) -> Trial:
        is_gpu = self.device.kind == "cuda"
        job = TrialJob(
            row=asdict(row),
            config=self.plan.config_of(row).to_json(),
            size=self.plan.size,
            lengths=self.plan.lengths,
            # A GPU needs more warm-up (cuDNN selection, allocator) and has cheaper steps.
            warm_up=10 if is_gpu else 3,
            # Chosen by hand: enough for a median, and for a lower and upper decile on a GPU.
            least_steps=10 if is_gpu else 5,
            most_steps=60 if is_gpu else 30,
            timed_s=timed_s,
            deadline_s=deadline_s,
        )
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "job.json").write_text(json.dumps(asdict(job)), encoding="utf-8")
            reason = self._wait_for(folder, deadline_s)
            try:
                values = json.loads((folder / "row.json").read_text(encoding="utf-8"))
                return Trial(**values)
            except FileNotFoundError:
                is_late = reason == "deadline"
                row.state = "cancelled" if self._is_cancelled else reason
                row.reason = (
                    f"it took longer than {deadline_s:.0f} s"
                    if is_late
                    else _last_words(folder / "log.txt")
                )
                return row

    def _wait_for(self, folder: Path, deadline_s: float) -> str:
        """Run a folder's trial until it ends or is killed; return why a result may be missing."""
        words = ["--row", str(folder / "job.json"), "--row-out", str(folder / "row.json")]
        with (folder / "log.txt").open("wb") as log:
            command = trainer_command("measure", *words)
            child = start_child(command, output=log, environment=child_environment())
            try:
                # The deadline includes the start of the process, because importing torch takes time
                # too.
                ends_at = time.monotonic() + deadline_s
                while child.poll() is None:
                    if self._is_cancelled or time.monotonic() > ends_at:
                        return "deadline"
                    time.sleep(_POLL_S)
            finally:
                end_child(child)
        return "failed"


def describe_machine(device: Device) -> dict[str, object]:
    """Return the device and the versions that a measurement depends on."""
    facts = {
        "device": device.name,
        "kind": device.kind,
        "memory_gib": round(device.memory_gib, 1),
        "cores": psutil.cpu_count(logical=True),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    if device.kind == "cuda":
        facts["cuda"] = torch.version.cuda
        peak = peak_flops(device.name)
        facts["peak_bf16_tflops"] = peak / 1e12 if peak else None
    return facts


def _describe_model(plan: BenchmarkPlan) -> dict[str, object]:
    config = plan.config
    has_clips = bool(config.data.train_csv or config.data.train_data)
    return {
        "family": config.family.name,
        "options": config.family.options,
        "size": plan.size or "base",
        "weights": "random" if not config.base else "of the base",
        "clips": "own" if has_clips else plan.lengths,
        "longest_s": None if has_clips else synthetic_spec_of(resolve(config)).longest_s,
        "batch_size": config.training.batch_size,
        "optimizer": config.optimizer.name,
    }


def _compare(row: Trial, first: Trial | None, device: Device) -> None:
    """Fill in what depends on the first trial: the drift of the loss and the MFU."""
    first = row if row.name == FIRST else first
    if first is None or not (first.is_done and row.is_done):
        return
    is_like = row.loss_after == first.loss_after and not row.changes
    if row.loss is not None and first.loss and is_like:
        row.loss_drift = abs(row.loss - first.loss) / abs(first.loss)
    if not (first.flops and first.padded_ratio and row.s_per_step):
        return
    # Count only useful work: no recomputation (the first trial has none) and no padding.
    is_known = row.positions is not None and first.positions
    # A trial that draws other batches did another amount of work; scale it by positions.
    share = row.positions / first.positions if is_known else 1.0  # type: ignore[operator]
    row.plain_flops = first.flops / first.padded_ratio * share
    peak = peak_flops(device.name) if device.kind == "cuda" else None
    if peak:
        row.mfu = row.plain_flops / row.s_per_step / peak


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    # The last line of a traceback names the error; 300 characters fit into a table.
    return lines[-1][:300] if lines else "it ended without a message"

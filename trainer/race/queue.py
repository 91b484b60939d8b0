"""Run a race in its folder, one training run after another; it can be stopped and resumed."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trainer.core.atomic_io import write_atomic
from trainer.core.child_process import Child, child_environment, start_child, trainer_command
from trainer.core.errors import ConfigError, RunError, RunExists, RunNotFound, RunOwned
from trainer.race.jobs import RaceJob, known_jobs
from trainer.race.plan import RacePlan
from trainer.race.result import Result, read_result
from trainer.runs.locks import acquire_lock, is_locked
from trainer.runs.run import Run

_MOST_STARTS = 3
"""Starts of a run whose process dies without an event; chosen by hand: one crash may be chance."""
# In seconds; chosen by hand: reading the state costs little next to a training step.
_POLL_S = 0.1

Echo = Callable[[str], None]
Stopped = Callable[[], bool]
Train = Callable[[Run, Stopped], str]
"""Trains a run until it ends or a stop is requested; returns its final state."""


@dataclass(frozen=True)
class RaceStatus:
    """The progress of a race.

    States: created, running, stopping, stopped (also after a kill), finished. `total` counts the
    runs that are certain so far; it grows when sweeps extend or runs of another length are needed.
    """

    state: str
    done: int
    total: int
    current: str
    problem: str


class Race:
    """A race in its folder, from which all of its state is derived."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        self.name = self.folder.name
        # A result never changes once a run has ended, so each log is read only once.
        self._ended: dict[str, Result] = {}
        self._tried: set[str] = set()

    @staticmethod
    def create(folder: Path | str, plan: RacePlan) -> "Race":
        """Create a race folder.

        Raises:
            RunExists: the folder already exists; a plan never changes.
        """
        race = Race(folder)
        try:
            race.folder.mkdir(parents=True)
        except FileExistsError:
            raise RunExists(
                f"The folder {race.folder} already exists, and the plan of a race never changes. "
                f"Choose another folder, or continue: python -m trainer race --race {race.folder}"
            ) from None
        # The stop file lives here; without the folder a first stop request would fail.
        (race.folder / "control").mkdir()
        text = json.dumps(plan.to_json(), indent=2, ensure_ascii=False)
        write_atomic(race.folder / "race.json", text + "\n")
        return race

    @staticmethod
    def open(folder: Path | str) -> "Race":
        """Open an existing race folder.

        Raises:
            RunNotFound: the folder has no race.
        """
        race = Race(folder)
        if not race.exists():
            raise RunNotFound(f"{race.folder} is not a race folder: race.json is missing.")
        return race

    def exists(self) -> bool:
        """Return whether the folder has a race."""
        return (self.folder / "race.json").is_file()

    @property
    def plan(self) -> RacePlan:
        """The plan of the race; it never changes."""
        try:
            values = json.loads((self.folder / "race.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{self.folder / 'race.json'} is not valid JSON: {error}.") from None
        return RacePlan.from_json(values)

    def request_stop(self) -> None:
        """Ask the race to save the current run and stop."""
        (self.folder / "control" / "stop").touch()

    def start(self) -> Child:
        """Run the race in a new process that outlives the caller.

        Raises:
            RunOwned: another process is already running it.
        """
        if self.is_running():
            raise RunOwned(f"The race {self.name} is already running.")
        self._stop_file.unlink(missing_ok=True)
        with (self.folder / "log.txt").open("wb") as log:
            return start_child(
                trainer_command("race", "--race", str(self.folder)),
                output=log,
                lifetime="session",
                environment=child_environment(),
                folder=self.folder,
            )

    def is_running(self) -> bool:
        """Return whether a live process is running the race."""
        # The operating system drops the lock with the process, so a killed race never looks alive.
        return is_locked(self.folder / "owner.lock")

    def jobs(self) -> list[RaceJob]:
        """List the runs that are certain so far, in order."""
        return known_jobs(self.plan, self.results())

    def results(self) -> dict[str, Result]:
        """Return the results so far by run name."""
        for path in sorted(self.folder.glob("*/run.json")):
            name = path.parent.name
            if name not in self._ended:
                result = read_result(Run(path.parent))
                if result is not None:
                    self._ended[name] = result
        return dict(self._ended)

    def run_of(self, job: RaceJob) -> Run:
        """Return the run of a job; it may not exist yet."""
        return Run(self.folder / job.name)

    def status(self) -> RaceStatus:
        """Return the state of the race, derived from its folder."""
        results, is_running = self.results(), self.is_running()
        try:
            jobs, problem = known_jobs(self.plan, results), ""
        # Too few minutes show only after the timing runs; the page has to say so.
        except ConfigError as error:
            return RaceStatus("stopped", len(results), len(results), "", str(error))
        left = [job for job in jobs if job.name not in results]
        current = left[0].name if left and is_running else ""
        wants_stop = (self.folder / "control" / "stop").exists()
        if is_running:
            state = "stopping" if wants_stop else "running"
        elif not left:
            state = "finished"
        else:
            # The lock file appears at the first start and stays, so it tells whether there was one.
            state = "stopped" if (self.folder / "owner.lock").exists() else "created"
        return RaceStatus(state, len(jobs) - len(left), len(jobs), current, problem)

    def carry_out(self, echo: Echo, train: Train | None = None) -> str:
        """Run what is left, one run after another, and return `finished` or `stopped`.

        Finished runs are not repeated. A run that was killed resumes from its checkpoint. A run
        that failed for a reason other than divergence is repeated at every call.

        Raises:
            RunOwned: another process is running the race.
        """
        # A status query also holds the lock for a moment, so retry; two seconds are chosen by hand.
        lock = acquire_lock(self.folder / "owner.lock", timeout_s=2.0)
        if lock is None:
            raise RunOwned(f"The race {self.name} is already running in another process.")
        try:
            self._stop_file.unlink(missing_ok=True)
            # Only under the lock: it deletes folders that another process might be training in.
            self._forget_failures()
            return self._carry_out(echo, train or train_in_child)
        finally:
            lock.release()

    @property
    def _stop_file(self) -> Path:
        return self.folder / "control" / "stop"

    def _carry_out(self, echo: Echo, train: Train) -> str:
        plan = self.plan
        while True:
            results = self.results()
            jobs = known_jobs(plan, results)
            job = next((job for job in jobs if job.name not in results), None)
            if job is None:
                return "finished"
            if self._stop_file.exists():
                return "stopped"
            echo(f"{job.name} ({len(results) + 1} of {len(jobs)} known): {job.steps} steps")
            run = self._prepare(job, plan)
            state = train(run, self._stop_file.exists)
            if state == "stopped":
                return "stopped"
            echo(self._describe(job, run, plan))

    def _prepare(self, job: RaceJob, plan: RacePlan) -> Run:
        run = self.run_of(job)
        if (run.folder / "run.json").is_file():
            return run
        # A kill while the folder was being created left it incomplete; it has no results yet.
        shutil.rmtree(run.folder, ignore_errors=True)
        config = plan.run_config(
            job.entrant,
            job.value,
            seed=job.seed,
            steps=job.steps,
            num_validations=job.num_validations,
        )
        return Run.create(run.folder, config)

    def _describe(self, job: RaceJob, run: Run, plan: RacePlan) -> str:
        result = self.results().get(job.name)
        if result is None:
            # Without this, a run that keeps dying would be restarted for ever.
            raise RunError(
                f"The process of run {run.folder} died {_MOST_STARTS} times without an error "
                "message; see its log.txt. Continue the race to try again."
            )
        # Only losses and times are compared; the weights of many runs would fill the disk.
        if not plan.keep_weights:
            shutil.rmtree(run.folder / "checkpoints", ignore_errors=True)
            (run.folder / "checkpoints").mkdir()
        if result.state != "finished":
            return f"{job.name}: {result.state}. {result.reason}"
        return f"{job.name}: val loss {result.score:.4f}, {result.s_per_step:.3f} s/step"

    def _forget_failures(self) -> None:
        # Only failures unrelated to the optimizer; a divergence is a result and stays.
        for name, result in self.results().items():
            if result.state == "failed":
                shutil.rmtree(self.folder / name)
                del self._ended[name]


def train_in_child(run: Run, wants_stop: Stopped) -> str:
    """Train a run in a child process, restarting it if it dies; return the final state."""
    for _ in range(_MOST_STARTS):
        process = None if run.status().is_active else run.start()
        # If another process is already training this run, ours exits at once and we wait for that
        # one.
        while (process is not None and process.poll() is None) or run.status().is_active:
            if wants_stop():
                run.request("stop")
            time.sleep(_POLL_S)
        state = run.status().state
        if state != "interrupted":
            return state
        if wants_stop():
            return "stopped"
    return "interrupted"


def machine_of(results_folder: Path) -> dict[str, object]:
    """Return the facts about machine and model that the first run of a race reported."""
    for path in sorted(results_folder.glob("*/run.json")):
        facts = Run(path.parent).status().facts
        if facts:
            return facts
    return {}

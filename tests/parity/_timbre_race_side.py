"""Our side of the race: a run as `python -m trainer train` does it, told to stop after each epoch.

PYTHONPATH=. python tests/parity/_timbre_race_side.py FOLDER NAME
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from race_marks import Marks, Moment

from trainer.core.events import CheckpointSaved, Event, Notice, PhaseChanged, RunStarted, StepDone
from trainer.core.run_config import Choice, DataConfig, RunConfig, TrainingConfig
from trainer.core.train_state import World
from trainer.runs.run import Run
from trainer.training.assemble import assemble
from trainer.worker.training_process import continue_run


def main() -> int:
    """Train the epochs of the plan, in turns; then measure what a cached clip costs."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    plan = json.loads((folder / "plan.json").read_text())
    torch.set_num_threads(1)
    referee = _Referee(Marks())
    run = Run.create(folder / name, make_config(folder, plan, plan["contestants"][name]))
    code = continue_run(run, referee.hear)
    facts = look_at_batches(run)
    versions = {package: version(package) for package in ("torch", "torchaudio")}
    referee.marks.finished(
        versions=versions,
        threads=torch.get_num_threads(),
        clips_left_out=referee.warnings,
        features_cpu_s=referee.features_s,
        **facts,
    )
    return code


def make_config(folder: Path, plan: dict[str, Any], optimizations: dict[str, Any]) -> RunConfig:
    """Return a run on the same clips with the same optimizer, validated and saved every epoch."""
    training = TrainingConfig(
        epochs=plan["epochs"],
        batch_size=plan["batch_size"],
        validate_every="1 epochs",
        save_every="1 epochs",
        preview_every="never",
        device="cpu",
        loader_workers=plan["loader_workers"],
    )
    adamw = {"lr": plan["lr"], "beta1": 0.9, "beta2": 0.96, "eps": 1e-8, "weight_decay": 0.01}
    return RunConfig(
        data=DataConfig(str(folder / "train.csv"), str(folder / "eval.csv"), language="en"),
        training=training,
        family=Choice("xtts"),
        optimizer=Choice("adamw", adamw),
        schedule=Choice("constant"),
        optimizations=optimizations,
        base=str(folder / "base"),
    )


class _Referee:
    """Stops the clocks as the events of the run come.

    An epoch ends with its last step. The next one bears the validation and the saving of the one
    before; a checkpoint is written beside the first steps, which are left out of what a step takes.
    """

    def __init__(self, marks: Marks) -> None:
        self.marks = marks
        self.warnings = 0
        self.features_s = 0.0
        self._steps_per_epoch = 0
        self._step = self._first_step = 0
        self._features_began: Moment | None = None

    def hear(self, event: Event) -> None:
        """Take an event that is already in the log of the run."""
        if isinstance(event, RunStarted):
            self._steps_per_epoch = event.steps_per_epoch
            self.marks.prepared(trained_parameters=event.facts["parameters"])
        elif isinstance(event, StepDone):
            self._step = event.step
            if event.step % self._steps_per_epoch == 0:
                self._end_epoch()
        elif isinstance(event, CheckpointSaved):
            self._first_step = self._step
            self.marks.steps_begin()
        elif isinstance(event, PhaseChanged) and event.phase == "Computing features":
            self._features_began = self._features_began or Moment.now()
            self.features_s = self._features_began.until(Moment.now())["cpu_s"]
        elif isinstance(event, Notice) and event.level == "warning":
            self.warnings += 1

    def _end_epoch(self) -> None:
        self.marks.trained(self._step - self._first_step)
        self._first_step = self._step
        self.marks.epoch_done()


def look_at_batches(run: Run, rounds: int = 4) -> dict[str, Any]:
    """Return how full the rows are, and the CPU seconds of a clip from the cache into a batch."""
    state = assemble(run.folder, run.config, world=World(), emit=lambda event: None)
    batches = state.train_batches
    positions = {"computed": 0, "real": 0}
    for step in range(1, batches.steps_per_epoch + 1):
        for batch in batches.micro_batches(step):
            positions["computed"] += batch["position_mask"].numel()
            positions["real"] += int(batch["position_mask"].sum())
    steps = rounds * batches.steps_per_epoch
    begin = Moment.now()
    for step in range(1, steps + 1):
        batches.micro_batches(step)
    batches.close()
    cpu_s = begin.until(Moment.now())["cpu_s"]
    if state.val_batches is not None:
        state.val_batches.close()
    # One more step than asked for is made ahead.
    per_clip = cpu_s / (steps + 1) / run.config.training.batch_size
    return {"positions": positions, "cached_clip_cpu_s": per_clip}


if __name__ == "__main__":
    sys.exit(main())

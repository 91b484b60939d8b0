"""A training process for page tests: the contract of a run folder, and made-up numbers.

python tests/helpers/fake_trainer.py RUN: steps until the run's last one, a stop request, or the end
that the run's preview sentence names: `fail`, `nan` or `vanish`, each after step 20.
"""

import math
import os
import struct
import sys
import time
import wave
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from trainer import Run
from trainer.core.events import (
    CheckpointSaved,
    Notice,
    PhaseChanged,
    PlanChanged,
    PreviewMade,
    RunFinished,
    RunStarted,
    StepDone,
    ValidationDone,
)
from trainer.runs.control import pop_step_request

_SAMPLE_RATE = 8000
_STEPS_PER_EPOCH = 10


def main(folder: str) -> int:
    """Train the run until its end."""
    run = Run.open(folder)
    lock = run.take(timeout_s=2.0)
    run.write_owner()
    first = run.series().last_step + 1
    total = run.series().planned_steps or run.config.training.steps or 300
    total = _take_plan(run, first - 1) or total
    run.events.append(PhaseChanged("Loading the model"))
    facts = {"device": "a fake", "family": "FastSpeech 2", "parameters": 1_234_567}
    states = {"sdpa": {"on": True, "detail": "flash kernel", "asked": True}}
    run.events.append(RunStarted(first, total, _STEPS_PER_EPOCH, facts, states))
    code = _train(run, first, total, pause_s=1 / float(os.environ.get("FAKE_RATE", "100")))
    lock.release()
    return code


def metrics_at(step: int) -> dict[str, float]:
    """Return made-up metrics: a loss that falls with a ripple."""
    loss = 1 + 5 * math.exp(-step / 80) + 0.1 * math.sin(step)
    return {
        "train/loss": loss,
        "train/loss/mel": 0.8 * loss,
        "train/lr": 1e-3 * math.exp(-step / 500),
        "train/grad_norm": 2 + math.sin(step / 3),
        "train/epoch": step / _STEPS_PER_EPOCH,
        "perf/s_per_step": 0.01,
        "perf/audio_s_per_s": 100.0,
        "perf/memory_gib": 0.5,
    }


def _train(run: Run, first: int, total: int, *, pause_s: float) -> int:
    wanted_end = run.config.training.preview_text
    step = first - 1
    while step < total:
        step += 1
        time.sleep(pause_s)
        run.events.append(StepDone(step, metrics_at(step)))
        if step % 25 == 0:
            run.events.append(ValidationDone(step, {"val/loss": metrics_at(step)["train/loss"]}))
        _answer(run, step)
        total = _take_plan(run, step) or total
        if "stop" in run.requests():
            _save(run, step)
            run.answer("stop")
            run.events.append(RunFinished("stopped", step))
            return 10
        if step == 20 and wanted_end in ("fail", "nan", "vanish"):
            return _end_badly(run, step, wanted_end)
    _preview(run, total)
    _save(run, total)
    run.events.append(RunFinished("finished", total))
    return 0


def _take_plan(run: Run, step: int) -> int | None:
    wanted = pop_step_request(run.folder)
    if wanted is not None:
        run.events.append(PlanChanged(step, wanted))
    return wanted


def _end_badly(run: Run, step: int, end: str) -> int:
    if end == "vanish":
        os.abort()
    if end == "nan":
        run.events.append(StepDone(step + 1, {"train/loss": float("nan")}))
        run.events.append(
            Notice("error", "The loss is NaN or infinite.", "Lower the rate.", step + 1)
        )
    remedy = "Halve the batch size and double the accumulation."
    run.events.append(RunFinished("failed", step, "The device ran out of memory.", remedy))
    return 20


def _answer(run: Run, step: int) -> None:
    if "save" in run.requests():
        _save(run, step)
        run.answer("save")
    if "preview" in run.requests():
        _preview(run, step)
        run.answer("preview")


def _save(run: Run, step: int) -> None:
    folder = run.folder / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(exist_ok=True)
    (folder / "manifest.json").write_text(f'{{"step": {step}, "best": true}}', encoding="utf-8")
    path = str(folder.relative_to(run.folder))
    run.events.append(CheckpointSaved(step, path, True, 1000, 0.01))


def _preview(run: Run, step: int) -> None:
    path = run.folder / "previews" / f"step-{step:08d}.wav"
    tone = [int(9000 * math.sin(i / 5)) for i in range(2 * _SAMPLE_RATE)]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(_SAMPLE_RATE)
        file.writeframes(struct.pack(f"<{len(tone)}h", *tone))
    relative = str(path.relative_to(run.folder))
    run.events.append(PreviewMade(step, relative, "Hello <b>there</b>", "ada"))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))

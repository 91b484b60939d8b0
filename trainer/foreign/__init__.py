"""Foreign pickles: tensors taken out in an isolated child process, nothing else ever run."""

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from trainer.errors import CheckpointError
from trainer.foreign.child import ALL, CLASS, DROPPED, TENSOR, Refused, Routes, split, write_tensors

__all__ = [
    "ALL",
    "CLASS",
    "DROPPED",
    "INERT_CLASSES",
    "TENSOR",
    "Job",
    "Refused",
    "Routes",
    "convert_pickle",
    "convert_pickles",
    "left_out",
    "read_pickle",
    "split",
    "write_tensors",
]

INERT_CLASSES = (
    "TTS.tts.configs.xtts_config.XttsConfig",
    "TTS.tts.configs.xtts_config.XttsArgs",
    "TTS.tts.configs.xtts_config.XttsAudioConfig",
    # Where these lived when the published weights were made.
    "TTS.tts.models.xtts.XttsArgs",
    "TTS.tts.models.xtts.XttsAudioConfig",
    "TTS.tts.layers.xtts.trainer.gpt_trainer.GPTTrainerConfig",
    "TTS.tts.layers.xtts.trainer.gpt_trainer.GPTArgs",
    "TTS.config.shared_configs.BaseDatasetConfig",
    "TTS.config.shared_configs.BaseAudioConfig",
    "TTS.config.shared_configs.BaseTrainingConfig",
    "TTS.tts.configs.shared_configs.BaseTTSConfig",
    "TTS.tts.configs.shared_configs.CharactersConfig",
    "coqpit.coqpit.Coqpit",
    "coqpit.Coqpit",
    "argparse.Namespace",
)
"""Classes that honest checkpoints hold beside tensors; their fields are read, they are not."""

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 5
_CHILD = Path(__file__).with_name("child.py")
_GIB = 2**30


@dataclass(frozen=True)
class Job:
    """One pickle, the folder that takes its tensors and values.json, and the tensors' routes."""

    source: Path
    target: Path
    routes: Routes


def convert_pickle(
    source: Path,
    target: Path,
    *,
    routes: Routes | None = None,
    classes: Sequence[str] = INERT_CLASSES,
    timeout_s: float | None = None,
) -> Any:
    """Convert one file that torch.save or pickle wrote; see `convert_pickles`."""
    job = Job(source, target, ALL if routes is None else routes)
    return convert_pickles([job], classes=classes, timeout_s=timeout_s)[0]


def convert_pickles(
    jobs: Sequence[Job],
    *,
    classes: Sequence[str] = INERT_CLASSES,
    timeout_s: float | None = None,
) -> list[Any]:
    """Convert files in one child process and return each one's plain values; log what is dropped.

    A tensor's name joins the keys that lead to it by dots. The values are the file's containers
    with {TENSOR: name} in a tensor's place and {CLASS: path, ...} in that of a known object.

    Raises:
        CheckpointError: a file is absent, damaged, holds code or takes too much memory or time.
    """
    for job in jobs:
        if not job.source.is_file():
            raise CheckpointError(f"{job.source} is not there. Copy the file again.")
        job.target.mkdir(parents=True, exist_ok=True)
    largest = sum(job.source.stat().st_size for job in jobs)
    # An honest file takes seconds per GiB; slow disks and busy machines are allowed for.
    seconds = 180 + 120 * largest // _GIB if timeout_s is None else timeout_s
    with tempfile.TemporaryDirectory(prefix="timbre-convert-") as folder:
        task_file = Path(folder) / "task.json"
        task = {
            "jobs": [
                {"source": str(job.source), "folder": str(job.target), "routes": job.routes}
                for job in jobs
            ],
            "classes": list(classes),
            "cpu_s": int(max(1, seconds)),
        }
        task_file.write_text(json.dumps(task), encoding="utf-8")
        ending = _run_child(task_file, seconds)
        _require_success(jobs, task_file, ending)
    found = [_read_values(job) for job in jobs]
    for job, values in zip(jobs, found, strict=True):
        _report(job.source, list(left_out(values)))
    return found


def read_pickle(source: Path) -> Any:
    """Convert one file and return its containers with the tensors, of any shape, in their places.

    Raises:
        CheckpointError: as `convert_pickles`.
    """
    with tempfile.TemporaryDirectory(prefix="timbre-", ignore_cleanup_errors=True) as folder:
        values = convert_pickle(source, Path(folder))
        file = Path(folder) / "tensors.safetensors"
        return _with_tensors(values, load_file(file) if file.is_file() else {})


def left_out(values: Any, place: str = "") -> Iterator[str]:
    """Yield what a conversion did not take over: where it stood, and what it was."""
    if isinstance(values, dict) and DROPPED in values:
        yield f"{place or 'the whole'}: {values[DROPPED]}"
    elif isinstance(values, dict | list):
        items = values.items() if isinstance(values, dict) else enumerate(values)
        for key, value in items:
            yield from left_out(value, f"{place}.{key}" if place else str(key))


def _report(source: Path, dropped: Sequence[str]) -> None:
    if dropped:
        named = ", ".join(dropped[:_MOST_NAMED])
        more = f" and {len(dropped) - _MOST_NAMED} more" if len(dropped) > _MOST_NAMED else ""
        _LOG.warning("%s: left out, as no part of the model: %s%s", source, named, more)


def _with_tensors(values: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(values, list):
        return [_with_tensors(value, tensors) for value in values]
    if not isinstance(values, dict):
        return values
    if TENSOR in values:
        return tensors[values[TENSOR]]
    return {key: _with_tensors(value, tensors) for key, value in values.items()}


def _run_child(task_file: Path, timeout_s: float) -> str:
    """Run the child to its end and return why it failed, if it left without a word."""
    # -P: nothing beside the script can take the place of a module that it imports.
    command = [sys.executable, "-P", str(_CHILD), str(task_file)]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=task_file.parent,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"reading it took more than {timeout_s:.0f} s"
    if result.returncode < 0:
        return "reading it took more memory or time than any model of its size needs"
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return f"its contents are damaged or no file of weights ({lines[-1][:200]})" if lines else ""


def _require_success(jobs: Sequence[Job], task_file: Path, ending: str) -> None:
    try:
        outcome = json.loads((task_file.parent / "outcome.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        outcome = {"at": 0}
    at = int(outcome["at"])
    if at == len(jobs):
        return
    job = jobs[at]
    if "disk" in outcome:
        raise CheckpointError(
            f"{job.source} could not be converted in {job.target}: {outcome['disk']}. "
            "Free some space there, or check that both may be read and written."
        )
    reason = outcome.get("refused") or ending or "the converter ended early"
    raise CheckpointError(
        f"{job.source} cannot be used: {reason}. Nothing in it was run. Download it again from "
        "where it was published, or ask its author for a file that holds nothing but weights."
    )


def _read_values(job: Job) -> Any:
    return json.loads((job.target / "values.json").read_text(encoding="utf-8"))

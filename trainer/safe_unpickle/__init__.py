"""Read tensors from untrusted pickles in an isolated child process, without running their code."""

import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from trainer.core.child_process import NOWHERE, run_child
from trainer.core.device import GIB
from trainer.core.errors import CheckpointError
from trainer.safe_unpickle.child import (
    ALL,
    CLASS,
    DROPPED,
    TENSOR,
    Refused,
    Routes,
    split,
    write_tensors,
)

__all__ = [
    "ALL",
    "CLASS",
    "DROPPED",
    "INERT_CLASSES",
    "TENSOR",
    "Conversion",
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
    # Their older paths, used when the published weights were saved.
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
"""Classes that genuine checkpoints contain besides tensors.

Only their fields are read; the classes themselves are never imported."""

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 5  # dropped objects listed in a log line
_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Conversion:
    """One pickle, the target folder for its tensors and values.json, and the tensors' routes."""

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
    """Convert one file written by torch.save or pickle; see `convert_pickles`."""
    job = Conversion(source, target, ALL if routes is None else routes)
    return convert_pickles([job], classes=classes, timeout_s=timeout_s)[0]


def convert_pickles(
    jobs: Sequence[Conversion],
    *,
    classes: Sequence[str] = INERT_CLASSES,
    timeout_s: float | None = None,
) -> list[Any]:
    """Convert files in one child process and return each file's plain values; log what is dropped.

    A tensor's name is the keys that lead to it, joined by dots. The values are the file's
    containers with {TENSOR: name} in place of a tensor and {CLASS: path, ...} in place of an object
    of a known class.

    Raises:
        CheckpointError: a file is missing, damaged, holds code or takes too much memory or time.
    """
    for job in jobs:
        if not job.source.is_file():
            raise CheckpointError(f"{job.source} does not exist. Copy the file there again.")
        job.target.mkdir(parents=True, exist_ok=True)
    # All files, because one child converts them one after another.
    largest = sum(job.source.stat().st_size for job in jobs)
    # Chosen by hand: a genuine file takes seconds per GiB; the rest allows for slow disks and busy
    # machines, and 180 s for importing torch.
    seconds = 180 + 120 * largest // GIB if timeout_s is None else timeout_s
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
    """Convert one file and return its containers with their tensors, of any shape.

    Raises:
        CheckpointError: for the same reasons as `convert_pickles`.
    """
    # On Windows the mapped file cannot be deleted while its tensors are in use.
    with tempfile.TemporaryDirectory(prefix="timbre-", ignore_cleanup_errors=True) as folder:
        values = convert_pickle(source, Path(folder))
        file = Path(folder) / "tensors.safetensors"
        return _with_tensors(values, load_file(file) if file.is_file() else {})


def left_out(values: Any, place: str = "") -> Iterator[str]:
    """Yield `place: kind` for everything that a conversion dropped."""
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
    """Run the child until it ends and return why it failed if it reported nothing itself."""
    # -P keeps the script's folder off sys.path, so no file there can shadow a module.
    command = [sys.executable, "-P", str(_CHILD), str(task_file)]
    # One thread and no GPU: every thread and CUDA context would count against the memory limit.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    try:
        result = run_child(
            command,
            timeout_s=timeout_s,
            output=NOWHERE,
            environment=environment,
            folder=task_file.parent,
        )
    except TimeoutError:
        return f"reading it took more than {timeout_s:.0f} s"
    # Negative: a signal ended it, from the limit on CPU time or from the kernel without memory.
    if result.returncode < 0:
        return "reading it took more memory or time than any model of its size needs"
    # Bytes of a hostile file may appear in a message, so decoding must not fail.
    lines = result.stderr.decode(errors="replace").strip().splitlines()
    return f"it is damaged or not a file of weights ({lines[-1][:200]})" if lines else ""


def _require_success(jobs: Sequence[Conversion], task_file: Path, ending: str) -> None:
    # A child that died at once leaves no outcome; then the first file is to blame.
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
            "Free some space there, or check the permissions of both."
        )
    reason = outcome.get("refused") or ending or "the converter ended early"
    raise CheckpointError(
        f"{job.source} cannot be used: {reason}. Nothing in it was run. Download it again from "
        "the original source, or ask its author for a file that holds only weights."
    )


def _read_values(job: Conversion) -> Any:
    return json.loads((job.target / "values.json").read_text(encoding="utf-8"))

"""Read tensors from untrusted pickles in an isolated child process, without running their code."""

import json
import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from safetensors.torch import load_file
from torch import Tensor

from trainer.core.child_process import run_child
from trainer.core.device import GIB
from trainer.core.errors import CheckpointError
from trainer.safe_unpickle.child import ALL, TENSOR, Routes, find_route

__all__ = [
    "ALL",
    "TENSOR",
    "Conversion",
    "Routes",
    "convert_pickles",
    "find_route",
    "read_pickle",
]

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 5  # dropped objects listed in a log line
_CHILD = Path(__file__).with_name("child.py")


@dataclass(frozen=True)
class Conversion:
    """One pickle, the folder for the files of its tensors, and the tensors' routes to files."""

    source: Path
    target: Path
    routes: Routes


class _Outcome(TypedDict, total=False):
    """The line that the child writes for a file."""

    values: object
    dropped: list[str]
    refused: str
    disk: str


def convert_pickles(jobs: Sequence[Conversion], *, timeout_s: float | None = None) -> list[object]:
    """Convert files in one child process and return each file's plain values; log what is dropped.

    A tensor's name is the keys that lead to it, joined by dots. The values are the file's
    containers with {TENSOR: name} in place of a tensor and None for what is left out.

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
    outcomes = _run_child(jobs, seconds)
    for job, outcome in zip(jobs, outcomes, strict=True):
        _report(job.source, outcome.get("dropped", ()))
    return [outcome.get("values") for outcome in outcomes]


def read_pickle(source: Path) -> object:
    """Convert one file and return its containers with their tensors, of any shape.

    Raises:
        CheckpointError: for the same reasons as `convert_pickles`.
    """
    # On Windows the mapped file cannot be deleted while its tensors are in use.
    with tempfile.TemporaryDirectory(prefix="timbre-", ignore_cleanup_errors=True) as folder:
        (values,) = convert_pickles([Conversion(source, Path(folder), ALL)])
        file = Path(folder) / "tensors.safetensors"
        return _with_tensors(values, load_file(file) if file.is_file() else {})


def _with_tensors(values: object, tensors: Mapping[str, Tensor]) -> object:
    if isinstance(values, list):
        return [_with_tensors(value, tensors) for value in values]
    if not isinstance(values, dict):
        return values
    if values.get(TENSOR) in tensors:
        return tensors[values[TENSOR]]
    return {key: _with_tensors(value, tensors) for key, value in values.items()}


def _run_child(jobs: Sequence[Conversion], timeout_s: float) -> list[_Outcome]:
    """Run the child until it ends, and return what it wrote for each file.

    Raises:
        CheckpointError: it did not finish all files; the message names the first unfinished one.
    """
    paths = [(str(job.source.absolute()), str(job.target.absolute()), job.routes) for job in jobs]
    # -P keeps the script's folder off sys.path, so no file there can shadow a module.
    command = [sys.executable, "-P", str(_CHILD), json.dumps([int(max(1, timeout_s)), paths])]
    # One thread and no GPU: every thread and CUDA context would count against the memory limit.
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    try:
        result = run_child(
            command, timeout_s=timeout_s, environment=environment, folder=jobs[0].target
        )
        output, ending = result.stdout, _why_ended(result.returncode, result.stderr)
    except TimeoutError:
        # What it wrote is lost, so the message names the first file.
        output, ending = b"", f"reading it took more than {timeout_s:.0f} s"
    # A child that is killed may leave a line incomplete.
    lines = [line for line in output.splitlines(keepends=True) if line.endswith(b"\n")]
    outcomes: list[_Outcome] = [json.loads(line) for line in lines]
    finished = [outcome for outcome in outcomes if "values" in outcome]
    if len(finished) == len(jobs):
        return finished
    job, failed = jobs[len(finished)], outcomes[-1] if outcomes else {}
    if "disk" in failed:
        raise CheckpointError(
            f"{job.source} could not be converted in {job.target}: {failed['disk']}. "
            "Free some space there, or check the permissions of both."
        )
    raise CheckpointError(
        f"{job.source} cannot be used: {failed.get('refused', ending)}. Nothing in it was run. "
        "Download it again from the original source, or ask its author for a file that holds only "
        "weights."
    )


def _why_ended(code: int, stderr: bytes) -> str:
    # Negative: a signal ended it, from the limit on CPU time or from the kernel without memory.
    if code < 0:
        return "reading it took more memory or time than any model of its size needs"
    # Bytes of a hostile file may appear in a message, so decoding must not fail.
    lines = stderr.decode(errors="replace").strip().splitlines() or ["the converter ended early"]
    return f"it is damaged or not a file of weights ({lines[-1][:200]})"


def _report(source: Path, dropped: Sequence[str]) -> None:
    if dropped:
        named = ", ".join(dropped[:_MOST_NAMED])
        more = f" and {len(dropped) - _MOST_NAMED} more" if len(dropped) > _MOST_NAMED else ""
        _LOG.warning("%s: left out, as no part of the model: %s%s", source, named, more)

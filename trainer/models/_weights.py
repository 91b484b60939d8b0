"""Read and write Timbre's checkpoint folders, and compare weights with a network's shapes."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from trainer.core.atomic_io import sync
from trainer.core.errors import CheckpointError
from trainer.core.run_config import WRITTEN_BY
from trainer.core.version import __version__
from trainer.models._json import Json

WEIGHTS_FILE, FACTS_FILE = "model.safetensors", "config.json"


def write_own(folder: Path, weights: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Write weights as safetensors and facts as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    save_tensors(folder / WEIGHTS_FILE, weights, {WRITTEN_BY: __version__})
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (folder / FACTS_FILE).write_text(text + "\n", encoding="utf-8")


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors of any shape, on any device, as safetensors."""
    save_file(on_host(tensors), path, metadata)
    # safetensors creates files that only their owner can read, but exports are shared.
    path.chmod(0o644)


@contextmanager
def publishing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder, whose files then replace those of the same names in `folder`.

    Raises:
        CheckpointError: the folder cannot be written; what it held is unchanged.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # In the same folder, because a rename is atomic only within a file system.
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
        try:
            yield partial
            files = sorted(partial.iterdir())
            for path in files:
                sync(path)
            # All files are complete by now, so a full disk leaves the old model usable.
            for path in files:
                os.replace(path, folder / path.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    # torch.save and safetensors report a full disk as errors of their own.
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"The model could not be written to {folder}: {error}. Free disk space there, or "
            "export to another folder."
        ) from None


def read_own_facts(base: Path, family: str, format_: int, also: str) -> Json | None:
    """Return the facts of a checkpoint that Timbre wrote, or None if it is something else.

    `also` completes the error message: it says what else the family accepts.

    Raises:
        CheckpointError: the checkpoint is of another family or of a newer format.
    """
    try:
        facts = json.loads((base / FACTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Without readable facts it is a published folder or a file; the caller tries those.
        return None
    # Published folders have a config.json too, but without a family.
    if not isinstance(facts, dict) or "family" not in facts:
        return None
    if facts["family"] != family:
        raise CheckpointError(
            f"{base} is a checkpoint of the family {facts['family']}, not {family}. Choose the "
            f"family {facts['family']}, or {also}."
        )
    require_format(facts, base, format_)
    return facts


def require_format(facts: Json, base: Path, newest: int) -> None:
    """Reject a checkpoint that a newer version of Timbre wrote.

    Raises:
        CheckpointError: its format is above `newest`.
    """
    if facts["format"] > newest:
        raise CheckpointError(
            f"{base} has format {facts['format']}, but this version of Timbre reads formats up to "
            f"{newest}. Update Timbre."
        )


def require_files(base: Path, names: Iterable[str]) -> None:
    """Reject a checkpoint folder that lacks one of its files.

    Raises:
        CheckpointError: a file is missing; the message names the first one.
    """
    missing = [name for name in names if not (base / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{base} has no {missing[0]}. Copy the whole checkpoint folder, or export the "
            "checkpoint again."
        )


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight."""
    return {name: tuple(value.shape) for name, value in state.items()}


def describe_mismatch(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> str:
    """Describe how names and shapes of weights differ from a network's; "" if they match."""
    parts = {
        "missing": [name for name in expected if name not in found],
        "unexpected": [name for name in found if name not in expected],
        "of another shape": [
            f"{name} {found[name]} instead of {shape}"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ],
    }
    return "; ".join(f"{what}: {_first(names)}" for what, names in parts.items() if names)


def _first(names: list[str]) -> str:
    # Three names show what is wrong; weights of another model differ in hundreds.
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def on_host(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights on the CPU and contiguous, as safetensors requires."""
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def link(source: Path, target: Path) -> None:
    """Hard-link a file, or copy it if the file system does not support links."""
    # Links fail across file systems, and some file systems have none.
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)

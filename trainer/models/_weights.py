"""Weights in folders: own checkpoints with facts and linked files, and whether weights fit."""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from trainer.errors import CheckpointError

WEIGHTS_FILE, FACTS_FILE = "model.safetensors", "config.json"


def write_own(folder: Path, weights: Mapping[str, Tensor], facts: dict[str, Any]) -> None:
    """Write weights and facts."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(on_host(weights), folder / WEIGHTS_FILE)
    # safetensors creates files that only their owner may read; an export is for others too.
    (folder / WEIGHTS_FILE).chmod(0o644)
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (folder / FACTS_FILE).write_text(text + "\n", encoding="utf-8")


def read_own_facts(base: Path, family: str, format_: int, also: str) -> dict[str, Any] | None:
    """Return the facts of a checkpoint of ours, or None if it is something else.

    `also` names what the family takes besides.

    Raises:
        CheckpointError: it is of another family or a newer format.
    """
    try:
        facts = json.loads((base / FACTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict) or "family" not in facts:
        return None
    if facts["family"] != family:
        raise CheckpointError(
            f"{base} holds a checkpoint of the family {facts['family']}. Choose that family, or "
            f"{also}."
        )
    require_format(facts, base, format_)
    return facts


def require_format(facts: dict[str, Any], base: Path, newest: int) -> None:
    """Refuse a checkpoint that a newer Timbre wrote.

    Raises:
        CheckpointError: its format is above `newest`.
    """
    if facts["format"] > newest:
        raise CheckpointError(
            f"{base} has format {facts['format']}; this Timbre reads up to {newest}. Update Timbre."
        )


def require_files(base: Path, names: Iterable[str]) -> None:
    """Refuse a checkpoint of which a file was left behind.

    Raises:
        CheckpointError: names the first.
    """
    missing = [name for name in names if not (base / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{base} lacks {missing[0]}. Give the whole folder of the checkpoint, or export it."
        )


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight."""
    return {name: tuple(value.shape) for name, value in state.items()}


def describe_misfit(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]]
) -> str:
    """Return in words how weights differ from a network's in names and shapes; "" if nowhere."""
    parts = {
        "missing": [name for name in expected if name not in found],
        "unknown": [name for name in found if name not in expected],
        "of another shape": [
            f"{name} {found[name]} instead of {shape}"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ],
    }
    return "; ".join(f"{what}: {_first(names)}" for what, names in parts.items() if names)


def _first(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def on_host(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights as files hold them: on the CPU, contiguous."""
    return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def link(source: Path, target: Path) -> None:
    """Make a second name for a file, or a copy where the file system knows no links."""
    with suppress(OSError):
        os.link(source, target)
        return
    shutil.copyfile(source, target)

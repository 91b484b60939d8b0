"""Where a run starts from: a published folder, a training checkpoint, or a checkpoint of ours."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from trainer.errors import CheckpointError
from trainer.models.xtts.folder import DVAE_FILE, VOICE_FILE, Base, State, open_base
from trainer.models.xtts.sizes import Sizes

FORMAT = 1
WEIGHTS_FILE, FACTS_FILE = "model.safetensors", "config.json"
FROZEN_FILES = (VOICE_FILE, DVAE_FILE)


@dataclass(frozen=True)
class OwnCheckpoint(Base):
    """A checkpoint of a run: a base of its own, since the frozen networks lie beside the GPT."""

    def gpt_state(self) -> State:
        """Return the GPT's weights under the published names below `gpt.`."""
        return load_file(self.folder / WEIGHTS_FILE)


def open_start(base: Path | None) -> Base:
    """Open what a run starts from; without a base, the random one.

    Raises:
        CheckpointError: it is absent, damaged, or the checkpoint of another family.
    """
    facts = _read_facts(base) if base is not None else None
    if base is None or facts is None:
        return open_base(base)
    missing = [name for name in (WEIGHTS_FILE, *FROZEN_FILES) if not (base / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{base} lacks {missing[0]}. Give the whole folder of the checkpoint, or export it."
        )
    return OwnCheckpoint(
        folder=base,
        source=base / WEIGHTS_FILE,
        sizes=Sizes.from_json(facts["sizes"]),
        config=facts["config"],
        vocab_json=facts["vocab"],
        licence=facts["licence"],
        speakers={},
    )


def _read_facts(base: Path) -> dict[str, Any] | None:
    """Return the facts of a checkpoint of ours, or None if it is something else.

    Raises:
        CheckpointError: it is of another family or a newer format.
    """
    try:
        facts = json.loads((base / FACTS_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(facts, dict) or "family" not in facts:
        return None
    if facts["family"] != "xtts":
        raise CheckpointError(
            f"{base} holds a checkpoint of the family {facts['family']}. Choose that family, or "
            "an XTTS v2 folder."
        )
    if facts["format"] > FORMAT:
        raise CheckpointError(
            f"{base} has format {facts['format']}; this Timbre reads up to {FORMAT}. Update Timbre."
        )
    return facts

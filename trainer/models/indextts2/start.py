"""Where a run starts from: a published folder, a training checkpoint, or a checkpoint of ours."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from trainer.errors import CheckpointError
from trainer.models.indextts2.folder import (
    CODEC_FILE,
    CONDITIONING_FILE,
    STATS_FILE,
    Base,
    State,
    open_base,
)
from trainer.models.indextts2.shapes import is_conditioning
from trainer.models.indextts2.sizes import Sizes

FORMAT = 1
WEIGHTS_FILE, FACTS_FILE = "model.safetensors", "config.json"
LINKED_FILES = (CONDITIONING_FILE, STATS_FILE, CODEC_FILE)
"""What a checkpoint takes over from its base, as far as that has it."""


@dataclass(frozen=True)
class OwnCheckpoint(Base):
    """A checkpoint of a run: a base of its own, since what hears references lies beside the GPT."""

    def gpt_state(self) -> State:
        """Return what is trained with precomputed voices."""
        state = load_file(self.folder / WEIGHTS_FILE)
        return {name: value for name, value in state.items() if not is_conditioning(name)}

    def conditioning_state(self) -> State:
        """Return what hears a reference, as trained if it was."""
        state = load_file(self.folder / WEIGHTS_FILE)
        trained = {name: value for name, value in state.items() if is_conditioning(name)}
        return trained or super().conditioning_state()


def open_start(base: Path | None) -> Base:
    """Open what a run starts from; without a base, the random one.

    Raises:
        CheckpointError: it is absent, damaged, or the checkpoint of another family.
    """
    facts = _read_facts(base) if base is not None else None
    if base is None or facts is None:
        return open_base(base)
    missing = [n for n in (WEIGHTS_FILE, CONDITIONING_FILE) if not (base / n).is_file()]
    if missing:
        raise CheckpointError(
            f"{base} lacks {missing[0]}. Give the whole folder of the checkpoint, or export it."
        )
    return OwnCheckpoint(
        folder=base,
        source=base / WEIGHTS_FILE,
        sizes=Sizes.from_json(facts["sizes"]),
        config=facts["config"],
        bpe_model=base64.b64decode(facts["bpe_model"]),
        licence=facts["licence"],
        is_random=facts["is_random"],
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
    if facts["family"] != "indextts2":
        raise CheckpointError(
            f"{base} holds a checkpoint of the family {facts['family']}. Choose that family, or "
            "an IndexTTS-2 folder."
        )
    if facts["format"] > FORMAT:
        raise CheckpointError(
            f"{base} has format {facts['format']}; this Timbre reads up to {FORMAT}. Update Timbre."
        )
    return facts

"""Open the base of a run: a published folder, a training checkpoint, or one of our checkpoints."""

import base64
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from trainer.models._weights import WEIGHTS_FILE, read_own_facts, require_files
from trainer.models.indextts2.checkpoint.base_folder import (
    CODEC_FILE,
    CONDITIONING_FILE,
    STATS_FILE,
    Base,
    State,
    open_base,
)
from trainer.models.indextts2.checkpoint.shapes import is_conditioning
from trainer.models.indextts2.network.sizes import Sizes

FORMAT = 1
LINKED_FILES = (CONDITIONING_FILE, STATS_FILE, CODEC_FILE)
"""Files of the base that a checkpoint links, if they exist."""


@dataclass(frozen=True)
class OwnCheckpoint(Base):
    """A checkpoint of a run, which is a complete base: the conditioning lies beside the GPT."""

    def gpt_state(self) -> State:
        """Return the weights of the GPT, without the conditioning."""
        state = load_file(self.folder / WEIGHTS_FILE)
        return {name: value for name, value in state.items() if not is_conditioning(name)}

    def conditioning_state(self) -> State:
        """Return the weights of the conditioning: the trained ones if it was trained."""
        state = load_file(self.folder / WEIGHTS_FILE)
        trained = {name: value for name, value in state.items() if is_conditioning(name)}
        # A run with precomputed voices has none; the base's lie in the linked file.
        return trained or super().conditioning_state()


def open_base_model(base: Path | None) -> Base:
    """Open the base of a run; without one, a random base.

    Raises:
        CheckpointError: it is missing, damaged, or a checkpoint of another family.
    """
    also = "choose an IndexTTS-2 folder"
    # A folder without facts of ours is a published one, or a training checkpoint of others.
    facts = read_own_facts(base, "indextts2", FORMAT, also) if base is not None else None
    if base is None or facts is None:
        return open_base(base)
    require_files(base, (WEIGHTS_FILE, CONDITIONING_FILE))
    return OwnCheckpoint(
        folder=base,
        source=base / WEIGHTS_FILE,
        sizes=Sizes.from_json(facts["sizes"]),
        config=facts["config"],
        bpe_model=base64.b64decode(facts["bpe_model"]),  # JSON has no bytes
        licence=facts["licence"],
        is_random=facts["is_random"],
    )

"""Where a run starts from: a published folder, a training checkpoint, or a checkpoint of ours."""

import base64
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from trainer.models._weights import WEIGHTS_FILE, read_own_facts, require_files
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
    also = "an IndexTTS-2 folder"
    facts = read_own_facts(base, "indextts2", FORMAT, also) if base is not None else None
    if base is None or facts is None:
        return open_base(base)
    require_files(base, (WEIGHTS_FILE, CONDITIONING_FILE))
    return OwnCheckpoint(
        folder=base,
        source=base / WEIGHTS_FILE,
        sizes=Sizes.from_json(facts["sizes"]),
        config=facts["config"],
        bpe_model=base64.b64decode(facts["bpe_model"]),
        licence=facts["licence"],
        is_random=facts["is_random"],
    )

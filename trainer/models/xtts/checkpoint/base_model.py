"""Open the base of a run: a published folder, a training checkpoint, or one of our checkpoints."""

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from trainer.models._weights import WEIGHTS_FILE, read_own_facts, require_files
from trainer.models.xtts.checkpoint.base_folder import DVAE_FILE, VOICE_FILE, Base, State, open_base
from trainer.models.xtts.network.sizes import Sizes

FORMAT = 1
FROZEN_FILES = (VOICE_FILE, DVAE_FILE)


@dataclass(frozen=True)
class OwnCheckpoint(Base):
    """A checkpoint of a run, which is a complete base: the other networks lie beside the GPT."""

    def gpt_state(self) -> State:
        """Return the GPT's weights, by their published names without `gpt.`."""
        return load_file(self.folder / WEIGHTS_FILE)


def open_base_model(base: Path | None) -> Base:
    """Open the base of a run; without one, a random base.

    Raises:
        CheckpointError: it is missing, damaged, or a checkpoint of another family.
    """
    also = "choose an XTTS v2 folder"
    # A folder without facts of ours is a published one, or a training checkpoint of others.
    facts = read_own_facts(base, "xtts", FORMAT, also) if base is not None else None
    if base is None or facts is None:
        return open_base(base)
    require_files(base, (WEIGHTS_FILE, *FROZEN_FILES))
    return OwnCheckpoint(
        folder=base,
        source=base / WEIGHTS_FILE,
        sizes=Sizes.from_json(facts["sizes"]),
        config=facts["config"],
        vocab_json=facts["vocab"],
        licence=facts["licence"],
        # Published voices are the base's; those of a run are the speakers in its facts.
        speakers={},
    )

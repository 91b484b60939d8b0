"""Where a run starts from: a published folder, a training checkpoint, or a checkpoint of ours."""

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file

from trainer.models._weights import WEIGHTS_FILE, read_own_facts, require_files
from trainer.models.xtts.folder import DVAE_FILE, VOICE_FILE, Base, State, open_base
from trainer.models.xtts.sizes import Sizes

FORMAT = 1
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
    also = "an XTTS v2 folder"
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
        speakers={},
    )

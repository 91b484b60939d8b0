"""Why IndexTTS-2 makes no audio here."""

from typing import Any

from torch import nn

from trainer.errors import DataError
from trainer.specs import Speech

SILENT = (
    "IndexTTS-2 makes no audio here: its codes become speech in the original package, by its s2mel "
    "network and vocoder. Export the model and put gpt.pth in place of the one there."
)


def silence(model: nn.Module) -> str:
    """Return why a model makes no audio."""
    return SILENT


def synthesize(model: nn.Module, facts: dict[str, Any], text: str, speaker: str) -> Speech:
    """Say why there is no audio.

    Raises:
        DataError: always.
    """
    raise DataError(SILENT)

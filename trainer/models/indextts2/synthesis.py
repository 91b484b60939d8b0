"""Speech of IndexTTS-2: through the original package where it is named, else a word why not."""

from pathlib import Path
from typing import Any

from torch import nn

from trainer.errors import DataError
from trainer.models.indextts2.checkpoint import own_model, publish
from trainer.models.indextts2.folder import read_config
from trainer.models.indextts2.original import Original
from trainer.specs import Speech

SILENT = (
    "IndexTTS-2 makes no audio here: its codes become speech in the original package, by its s2mel "
    "network and vocoder. Name that package's Python and checkpoints among the options, or export "
    "the model and put gpt.pth in place of the one there."
)


_MOST_CODES = 1500
"""Half a minute, which is also the original's limit."""


def silence(model: nn.Module) -> str:
    """Return why a model makes no audio; empty: the original package is there to speak."""
    original = own_model(model).original
    if not original.is_wanted:
        return SILENT
    lacks = original.lacks()
    return f"IndexTTS-2 makes no audio: {lacks}" if lacks else ""


def synthesize(model: nn.Module, facts: dict[str, Any], text: str, speaker: str) -> Speech:
    """Speak through the original package, in the voice of the reference among the options.

    Raises:
        DataError: the package is not named or not whole, or there is nothing to say.
        CheckpointError: the package fails.
    """
    reason = silence(model)
    if reason:
        raise DataError(reason)
    if not text.strip():
        raise DataError("There is nothing to say. Write a sentence.")
    original = own_model(model).original

    def put_weights(folder: Path) -> None:
        publish(model, whole_facts(facts, original), folder, False)

    most_codes = min(_MOST_CODES, facts["sizes"]["max_audio_tokens"] - 1)
    return original.speak(text, put_weights, most_codes=most_codes)


def whole_facts(facts: dict[str, Any], original: Original) -> dict[str, Any]:
    """Return facts with the whole config.yaml of the package's folder around the model's own GPT.

    Training needs the section gpt alone, so that a base may have no other.
    """
    config = read_config(Path(original.folder) / "config.yaml")
    config |= {"gpt": facts["config"]["gpt"], "gpt_checkpoint": "gpt.pth"}
    config["dataset"] = dict(config.get("dataset") or {}) | {"bpe_model": "bpe.model"}
    return facts | {"config": config}

"""Speak with IndexTTS-2 through the original package, or say why that is not possible."""

from pathlib import Path

from torch import nn

from trainer.core.errors import DataError
from trainer.core.specs import Speech
from trainer.models.indextts2.checkpoint.base_folder import read_config
from trainer.models.indextts2.checkpoint.weights import own_model, publish
from trainer.models.indextts2.facts import Facts
from trainer.models.indextts2.upstream.package import Original

SILENT = (
    "Timbre cannot turn the codes of IndexTTS-2 into audio: that takes the s2mel network and the "
    "vocoder of the original package. Set the Python and checkpoints of that package in the "
    "options, or export the model and replace the package's gpt.pth with it."
)


_MOST_CODES = 1500
"""30 s of audio, which is also the original package's default limit."""


def silence(model: nn.Module) -> str:
    """Return why a model cannot make audio, or "" if the original package can."""
    original = own_model(model).original
    # Without any path set, explain how to get audio; with some, say what is missing.
    if not original.is_wanted:
        return SILENT
    lacks = original.lacks()
    return f"IndexTTS-2 cannot make audio: {lacks}" if lacks else ""


def synthesize(model: nn.Module, facts: Facts, text: str, speaker: str) -> Speech:
    """Speak through the original package, in the voice of the reference set in the options.

    Raises:
        DataError: the package is not set up or incomplete, or the text is empty.
        CheckpointError: the package fails.
    """
    reason = silence(model)
    if reason:
        raise DataError(reason)
    if not text.strip():
        raise DataError("The text is empty. Enter a sentence.")
    original = own_model(model).original

    def put_weights(folder: Path) -> None:
        publish(model, whole_facts(facts, original), folder, False)

    most_codes = min(_MOST_CODES, facts["sizes"]["max_audio_tokens"] - 1)
    return original.speak(text, put_weights, most_codes=most_codes)


def whole_facts(facts: Facts, original: Original) -> Facts:
    """Return facts with the complete config.yaml of the package, but the model's section `gpt`.

    Training needs only that section, so the config.yaml of a base may have no other.
    """
    config = read_config(Path(original.folder) / "config.yaml")
    config |= {"gpt": facts["config"]["gpt"], "gpt_checkpoint": "gpt.pth"}
    # The names of the files that `publish` writes, whatever the package's config calls them.
    config["dataset"] = dict(config.get("dataset") or {}) | {"bpe_model": "bpe.model"}
    return {**facts, "config": config}

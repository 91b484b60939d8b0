"""Transcription: a Whisper model writes down what clips say; an optional extra."""

import importlib
from collections.abc import Callable
from pathlib import Path

from trainer.errors import CheckpointError, MissingDependency

Transcriber = Callable[[Path], str]


def open_transcriber(model: str, language: str) -> Transcriber:
    """Load a Whisper model by faster-whisper: a folder in CTranslate2 layout, or a published name.

    It computes on a GPU if CTranslate2 finds one, else on the CPU in 8 bits.

    Raises:
        MissingDependency: faster-whisper is not installed.
        CheckpointError: there is no such model here, and it cannot be downloaded.
    """
    try:
        package = importlib.import_module("faster_whisper")
    except ImportError:
        raise MissingDependency("faster-whisper", "Writing texts by Whisper") from None
    try:
        whisper = package.WhisperModel(model, device="auto", compute_type="auto")
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise CheckpointError(
            f"The Whisper model '{model}' cannot be opened: {reason.rstrip('. ')}. Give a folder "
            "with a model in CTranslate2 layout (model.bin, config.json, tokenizer.json), or, with "
            "a connection, a name such as small or large-v3."
        ) from None
    spoken = language.split("-")[0] or None

    def write_down(path: Path) -> str:
        segments, _ = whisper.transcribe(
            str(path),
            language=spoken,
            beam_size=5,
            # One clip must not talk the next one into what it says.
            condition_on_previous_text=False,
            without_timestamps=True,
        )
        return " ".join(segment.text.strip() for segment in segments).strip()

    return write_down

"""Transcription: a Whisper model writes down what clips say; an optional extra."""

import importlib
from collections.abc import Callable
from pathlib import Path

from trainer.errors import CheckpointError, MissingDependency

Transcriber = Callable[[Path], str]

_WEIGHTS_GIB = 3.0
"""What large-v3 takes in 16 bits."""


def open_transcriber(model: str, language: str) -> Transcriber:
    """Load a Whisper model by faster-whisper: a folder in CTranslate2 layout, or a published name.

    It computes on a GPU that has room to spare beside what trains there, else on the CPU.

    Raises:
        MissingDependency: faster-whisper is not installed.
        CheckpointError: there is no such model here, and it cannot be downloaded.
    """
    try:
        package = importlib.import_module("faster_whisper")
    except ImportError:
        raise MissingDependency("faster-whisper", "Writing texts by Whisper") from None
    # Imported here: it loads torch, which cutting alone does not need.
    from trainer.speaking import choose_place

    try:
        kind, _, index = choose_place("auto", _WEIGHTS_GIB).partition(":")
        whisper = package.WhisperModel(
            model, device=kind, device_index=int(index or 0), compute_type="auto"
        )
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise CheckpointError(
            f"The Whisper model '{model}' cannot be opened: {reason.rstrip('. ')}. Give a folder "
            "with a model in CTranslate2 layout (model.bin, config.json, tokenizer.json), or, with "
            "a connection, a name such as small or large-v3."
        ) from None
    spoken = language.split("-")[0] or None

    def write_down(path: Path) -> str:
        try:
            segments, _ = whisper.transcribe(
                str(path),
                language=spoken,
                beam_size=5,
                # What it said before must not talk it into what comes.
                condition_on_previous_text=False,
                without_timestamps=True,
            )
            return " ".join(segment.text.strip() for segment in segments).strip()
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"The Whisper model '{model}' could not write {path.name} down: "
                f"{str(error)[:200].rstrip('. ')}. Check the language, or give another model; "
                "what is written is kept."
            ) from None

    return write_down

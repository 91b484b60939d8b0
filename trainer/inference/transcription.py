"""Transcribe clips with a Whisper model (optional: needs faster-whisper)."""

import importlib
from collections.abc import Callable
from pathlib import Path

from trainer.core.errors import CheckpointError, MissingDependency

Transcriber = Callable[[Path], str]

_WEIGHTS_GIB = 3.0
"""Weights of large-v3, the largest model, in 16 bits: 1.55 billion parameters, rounded up."""


def open_transcriber(model: str, language: str) -> Transcriber:
    """Load a Whisper model with faster-whisper: a CTranslate2 folder or the name of a model.

    It runs on a GPU if there is enough free memory besides a training run, else on the CPU.

    Raises:
        MissingDependency: faster-whisper is not installed.
        CheckpointError: the model is not on this machine and cannot be downloaded.
    """
    try:
        package = importlib.import_module("faster_whisper")
    except ImportError:
        raise MissingDependency("faster-whisper", "Transcribing with Whisper") from None
    # Imported here because it loads torch, which cutting recordings does not need.
    from trainer.inference.synthesis import choose_inference_device

    try:
        kind, _, index = choose_inference_device("auto", _WEIGHTS_GIB).partition(":")
        whisper = package.WhisperModel(
            model, device=kind, device_index=int(index or 0), compute_type="auto"
        )
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise CheckpointError(
            f"The Whisper model '{model}' cannot be opened: {reason.rstrip('. ')}. Use a folder "
            "with a model in CTranslate2 layout (model.bin, config.json, tokenizer.json) or, if "
            "this machine is online, a name such as small or large-v3."
        ) from None
    spoken = language.split("-")[0] or None  # Whisper knows `en`, not `en-GB`; None detects it

    def write_down(path: Path) -> str:
        try:
            segments, _ = whisper.transcribe(
                str(path),
                language=spoken,
                beam_size=5,  # faster-whisper's default
                # Conditioning on its earlier text can make Whisper repeat it in a loop.
                condition_on_previous_text=False,
                without_timestamps=True,
            )
            return " ".join(segment.text.strip() for segment in segments).strip()
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"The Whisper model '{model}' could not transcribe {path.name}: "
                f"{str(error)[:200].rstrip('. ')}. Check the language or use another model. The "
                "texts written so far are kept."
            ) from None

    return write_down

"""The options of FastSpeech 2."""

from dataclasses import dataclass

from trainer.core.errors import ConfigError, FieldProblem
from trainer.core.options import option


@dataclass(frozen=True)
class Options:
    """The options of the family, in the order in which the form shows them."""

    size: str = option(
        "small",
        "Size",
        "small: about 1 M parameters, trains on a CPU; standard: 35 M, for a GPU, loads published "
        "checkpoints.",
        choices=("small", "standard"),
    )
    tokens: str = option(
        "characters",
        "Text input",
        "characters work for every language; phonemes (espeak-ng) pronounce rare words better.",
        choices=("characters", "phonemes"),
    )
    # pulse is the fastest: a preview should not take longer than the steps between previews
    # (docs/decisions/0046).
    vocoder: str = option(
        "pulse",
        "Vocoder",
        "Turns mels into audio: pulse (fast, follows the predicted pitch), griffin-lim, or hifigan "
        "with your own weights.",
        choices=("pulse", "griffin-lim", "hifigan"),
    )
    hifigan: str = option(
        "",
        "HiFi-GAN weights",
        "Generator checkpoint for 22050 Hz, 80 mels, hop 256; required if the vocoder is hifigan.",
        advanced=True,
        is_path=True,
    )
    blocks: str = option(
        "auto",
        "Blocks",
        "auto: convolution for small, transformer for standard.",
        choices=("auto", "convolution", "transformer"),
        advanced=True,
    )
    # monophone needs no dependency and works for minutes of speech (docs/decisions/0047).
    aligner: str = option(
        "monophone",
        "Aligner",
        "Finds where each symbol begins and ends: monophone (takes seconds, any language), neural "
        "(slower; for hours of speech and a GPU), or ctc with your own speech recogniser.",
        choices=("monophone", "neural", "ctc"),
        advanced=True,
    )
    # On the demo, 3000 steps agree no better with the monophone aligner than 1000 do
    # (docs/decisions/0047).
    aligner_steps: int = option(
        1000,
        "Neural aligner steps",
        "Training steps of the neural aligner, 8 clips each; increase for hours of speech.",
        min=1,
        advanced=True,
    )
    ctc_model: str = option(
        "",
        "CTC model",
        "A TorchScript file that maps audio (1, samples) to scores (1, frames, labels), with a "
        '.json file of the same name beside it: {"labels": [...], "sample_rate": 16000, '
        '"blank": 0}. The file is a program; use only one that you trust.',
        advanced=True,
        is_path=True,
    )
    trim_silence: bool = option(
        False, "Trim silence", "Cut silence at both ends of every clip.", advanced=True
    )
    # None, because the default depends on the size, like those of the loss weights below.
    dropout: float | None = option(
        None, "Dropout", "Empty: 0.05 for small, 0.2 for standard.", min=0.0, max=0.9, advanced=True
    )
    mel_weight: float = option(
        1.0, "Mel loss weight", "Weight of the mel error.", min=0.0, advanced=True
    )
    duration_weight: float | None = option(
        None,
        "Duration loss weight",
        "Empty: 0.3 for small, 1 for standard.",
        min=0.0,
        advanced=True,
    )
    pitch_weight: float | None = option(
        None, "Pitch loss weight", "Empty: 0.1 for small, 1 for standard.", min=0.0, advanced=True
    )
    energy_weight: float | None = option(
        None, "Energy loss weight", "Empty: 0.1 for small, 1 for standard.", min=0.0, advanced=True
    )

    def __post_init__(self) -> None:
        # Only what the options alone can tell; whether files exist is checked for all families.
        if self.aligner == "ctc" and not self.ctc_model:
            raise ConfigError(
                FieldProblem(
                    "CTC model (ctc_model) is empty; the ctc aligner needs the path of a "
                    "TorchScript file. Enter one, or choose another aligner.",
                    "ctc_model",
                )
            )


def loss_weights(options: Options) -> dict[str, float]:
    """Return the weight of each loss, with defaults that depend on the size."""
    is_small = options.size == "small"
    chosen = {
        "mel": options.mel_weight,
        "duration": options.duration_weight,
        "pitch": options.pitch_weight,
        "energy": options.energy_weight,
    }
    # The standard size weights all losses by 1, as published. The small one, chosen by hand, puts
    # the mel first; coqui-tts's FastSpeech 2 weights pitch, energy and duration by 0.1.
    usual = {"mel": 1.0, "duration": 0.3, "pitch": 0.1, "energy": 0.1}
    return {
        name: weight if weight is not None else (usual[name] if is_small else 1.0)
        for name, weight in chosen.items()
    }

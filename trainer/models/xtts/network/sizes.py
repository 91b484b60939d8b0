"""Sizes of the networks of XTTS v2; the defaults are those of the published config.json."""

from dataclasses import asdict, dataclass

from trainer.models._json import Json

SAMPLE_RATE = 22050
"""Hz, of the audio for the GPT and the DVAE."""

OUTPUT_RATE = 24000
"""Hz, of the vocoder's audio."""

SPEAKER_RATE = 16000
"""Hz, of the audio for the speaker encoder."""

HOP_LENGTH = 256
"""Samples from one mel frame to the next, at 22,050 Hz."""

CODE_STRIDE = 1024
"""Samples of audio per code, at 22,050 Hz: the DVAE reduces mel frames by 4."""


@dataclass(frozen=True)
class GptSizes:
    """Sizes of the GPT with its conditioning encoder, perceiver and heads."""

    layers: int = 30
    width: int = 1024
    heads: int = 16
    num_text_tokens: int = 6681  # of the published vocab.json
    num_audio_tokens: int = 1026  # 1,024 codes of the DVAE, start and stop
    start_text: int = 261  # [START] in the published vocab.json
    stop_text: int = 0
    start_audio: int = 1024
    stop_audio: int = 1025
    max_text_tokens: int = 402
    max_audio_tokens: int = 605  # 28 s of codes
    n_mels: int = 80
    num_latents: int = 32
    conditioning_layers: int = 6
    perceiver_layers: int = 2
    perceiver_heads: int = 8

    @property
    def text_positions(self) -> int:
        """Rows of the text position table: start and stop need one each."""
        return self.max_text_tokens + 2

    @property
    def audio_positions(self) -> int:
        """Rows of the audio position table; upstream has three more than gpt_max_audio_tokens."""
        return self.max_audio_tokens + 3


@dataclass(frozen=True)
class DvaeSizes:
    """Sizes of the encoder half of the DVAE and its codebook."""

    n_mels: int = 80
    hidden: int = 512
    codebook_width: int = 512
    num_codes: int = 1024
    num_resnet_blocks: int = 3


@dataclass(frozen=True)
class VocoderSizes:
    """Sizes of the HiFi-GAN decoder."""

    latent_width: int = 1024  # that of the GPT, whose hidden vectors are decoded
    speaker_width: int = 512
    width: int = 512
    upsample_rates: tuple[int, ...] = (8, 8, 2, 2)  # 256 samples per frame
    upsample_kernels: tuple[int, ...] = (16, 16, 4, 4)
    block_kernels: tuple[int, ...] = (3, 7, 11)
    dilations: tuple[int, ...] = (1, 3, 5)


@dataclass(frozen=True)
class SpeakerSizes:
    """Sizes of the ResNet speaker encoder."""

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    widths: tuple[int, ...] = (32, 64, 128, 256)
    n_mels: int = 64
    embedding: int = 512


@dataclass(frozen=True)
class Sizes:
    """Sizes of all networks in a checkpoint folder."""

    gpt: GptSizes = GptSizes()
    dvae: DvaeSizes = DvaeSizes()
    vocoder: VocoderSizes = VocoderSizes()
    speaker: SpeakerSizes = SpeakerSizes()

    def to_json(self) -> Json:
        """Return the sizes as plain JSON values, for `from_json`."""
        return {part: _lists(values) for part, values in asdict(self).items()}

    @staticmethod
    def from_json(values: Json) -> "Sizes":
        """Build the sizes from JSON values."""
        return Sizes(
            GptSizes(**values["gpt"]),
            DvaeSizes(**values["dvae"]),
            VocoderSizes(**_tuples(values["vocoder"])),
            SpeakerSizes(**_tuples(values["speaker"])),
        )


def _lists(values: Json) -> Json:
    # JSON has no tuples; with lists, facts equal what is read back.
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }


def _tuples(values: Json) -> Json:
    # Frozen sizes are hashable only with tuples.
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }


TINY = Sizes(
    GptSizes(
        layers=2, width=64, heads=4, num_text_tokens=0, conditioning_layers=2, perceiver_heads=2
    ),
    DvaeSizes(hidden=32, codebook_width=32),
    VocoderSizes(latent_width=64, speaker_width=32, width=32),
    SpeakerSizes(blocks=(1, 1, 1, 1), widths=(4, 8, 8, 16), embedding=32),
)
"""For tests, and to try the whole workflow without published weights.

A `num_text_tokens` of 0 means as many as the tokenizer has.
"""

"""Sizes of the GPT of IndexTTS-2; the defaults are those of the published config.yaml."""

from dataclasses import asdict, dataclass, field

from trainer.models._json import Json

CODES_A_SECOND = 50
"""Codes, and frames of semantic features, per second of audio."""

OUTPUT_RATE = 22050
"""Hz, of the vocoder's audio."""

MAX_REFERENCE_S = 15.0
"""Upstream's inference cuts references to this length."""


@dataclass(frozen=True)
class ConformerSizes:
    """Sizes of one of the two encoders of a reference."""

    width: int = 512
    blocks: int = 6
    heads: int = 8
    inner: int = 2048


@dataclass(frozen=True)
class Sizes:
    """Sizes of the GPT and its two conditioning branches; token counts are rows of the tables."""

    layers: int = 24
    width: int = 1280
    heads: int = 20
    num_text_tokens: int = 12001  # 12,000 tokens of bpe.model; upstream adds a row
    num_audio_tokens: int = 8194  # 8,192 codes of the codec, start and stop
    start_text: int = 0
    stop_text: int = 1
    start_audio: int = 8192
    stop_audio: int = 8193
    max_text_tokens: int = 600
    max_audio_tokens: int = 1815  # 36 s of codes
    num_latents: int = 32  # vectors of a voice, however long its reference is
    feature_width: int = 1024  # of the hidden states of w2v-bert-2.0
    emotion_width: int = 1024
    perceiver_layers: int = 2
    perceiver_mult: int = 2
    speaker: ConformerSizes = field(default_factory=ConformerSizes)
    emotion: ConformerSizes = field(
        default_factory=lambda: ConformerSizes(blocks=4, heads=4, inner=1024)
    )

    @property
    def text_positions(self) -> int:
        """Rows of the text position table: start and stop need one each."""
        return self.max_text_tokens + 2

    @property
    def audio_positions(self) -> int:
        """Rows of the audio position table; upstream has three more than max_mel_tokens."""
        return self.max_audio_tokens + 3

    @property
    def num_prompt(self) -> int:
        """Positions before the text: the speaker latents and the two speed embeddings."""
        return self.num_latents + 2

    def to_json(self) -> Json:
        """Return the sizes as plain JSON values, for `from_json`."""
        return asdict(self)

    @staticmethod
    def from_json(values: Json) -> "Sizes":
        """Build the sizes from JSON values."""
        parts = dict(values)
        for name in ("speaker", "emotion"):
            parts[name] = ConformerSizes(**values[name])
        return Sizes(**parts)


TINY = Sizes(
    layers=2,
    width=64,
    heads=4,
    num_text_tokens=0,
    num_audio_tokens=258,
    start_audio=256,
    stop_audio=257,
    num_latents=8,
    feature_width=160,  # the filterbank itself, so that w2v-bert-2.0 is not needed
    emotion_width=32,
    speaker=ConformerSizes(width=32, blocks=2, heads=2, inner=64),
    emotion=ConformerSizes(width=32, blocks=1, heads=2, inner=64),
)
"""For tests, and to try the whole workflow without published weights.

A `num_text_tokens` of 0 means as many as the tokenizer has.
"""

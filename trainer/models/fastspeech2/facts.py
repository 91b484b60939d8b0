"""The layout of the facts (config.json) of a checkpoint of FastSpeech 2."""

from typing import NotRequired, TypedDict

from trainer.models._json import Json


class Voice(TypedDict):
    """Statistics of a speaker: log F0 (of Hz) over voiced frames, energy over all frames."""

    name: str
    language: str
    pitch_mean: float
    pitch_std: float
    energy_mean: float
    energy_std: float


class BaseFacts(TypedDict):
    """What is known of every base; the optional keys are those of a checkpoint of Timbre."""

    family: str
    size: str
    sizes: Json
    symbols: list[str]
    speakers: list[Voice]
    format: NotRequired[int]
    pitch_range: NotRequired[list[float]]
    energy_range: NotRequired[list[float]]
    has_untrained_letters: NotRequired[bool]


class Facts(BaseFacts):
    """What `load` and `synthesize` need besides weights."""

    tokens: str
    mel: Json
    sample_rate: int
    vocoder: str
    hifigan: str
    voicing: NotRequired[list[float]]

"""The layout of the facts (config.json) of a checkpoint of XTTS."""

from typing import NotRequired, TypedDict

from trainer.models._json import Json


class Speaker(TypedDict):
    """A voice; `language` is how older checkpoints name its only language."""

    name: str
    references: list[str]
    languages: NotRequired[list[str]]
    language: NotRequired[str]


class ShortText(TypedDict):
    """A short clip, whose speech must end in time."""

    text: str
    language: str
    speaker: str
    num_codes: int


class Facts(TypedDict):
    """What `load` needs besides weights; what a synthetic corpus does without is not required."""

    format: int
    family: str
    sizes: Json
    vocab: str
    related: dict[str, list[int]]
    amharic_g2p: bool
    config: Json
    speakers: list[Speaker]
    language_costs: NotRequired[list[Json]]
    sample_rate: NotRequired[int]
    licence: str
    short_texts: NotRequired[list[ShortText]]

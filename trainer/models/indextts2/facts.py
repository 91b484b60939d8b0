"""The layout of the facts (config.json) of a checkpoint of IndexTTS-2."""

from typing import TypedDict

from trainer.models._json import Json


class Speaker(TypedDict):
    """A speaker and the language of their first clip."""

    name: str
    language: str


class Facts(TypedDict):
    """What `load` needs besides weights.

    `bpe_model` is base64. `text_rows` are the old rows of each new one, if the tokenizer is new.
    """

    format: int
    family: str
    sizes: Json
    bpe_model: str
    text_rows: list[list[int]] | None
    config: Json
    speakers: list[Speaker]
    sample_rate: int
    licence: str
    is_random: bool

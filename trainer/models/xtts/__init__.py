"""XTTS v2: fine-tune its GPT; DVAE, vocoder and speaker encoder stay as published."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.core.specs import Featurizer, ModelFamily
from trainer.core.types import Features
from trainer.models.xtts.checkpoint.base_model import open_base_model
from trainer.models.xtts.inference.synthesis import checks, stream, synthesize
from trainer.models.xtts.inference.text_preview import preview_texts
from trainer.models.xtts.network.sizes import GptSizes
from trainer.models.xtts.options import Options
from trainer.models.xtts.training.batches import Collate, counts, make_collate
from trainer.models.xtts.training.featurizer import XttsFeaturizer
from trainer.models.xtts.training.losses import blocks, losses, validate
from trainer.models.xtts.training.references import draws
from trainer.models.xtts.training.survey import survey
from trainer.models.xtts.training.synthetic import SYNTHETIC
from trainer.models.xtts.training.weights import export, load, publish, terms

if TYPE_CHECKING:
    from torch import Tensor


def make_featurizer(base: Path | None, options: Options) -> Featurizer:
    """Return the featurizer for a base, whose DVAE it uses."""
    # Codes come from the DVAE of the base, so each base has features of its own.
    return XttsFeaturizer(open_base_model(base))


def collate(clips: "Sequence[Features]") -> "dict[str, Tensor]":
    """Lay out clips as rows, with the special tokens that are stored with every clip.

    Returns text_ids, audio_ids (B, T), layout (B, T) and more; see `make_collate`.
    """
    # `collate` gets nothing but clips, so the survey stores the tokens with each of them.
    return _collate_of(tuple(int(value) for value in clips[0]["layout"]))(clips)


# A run has one layout, so a few are plenty.
@lru_cache(maxsize=4)
def _collate_of(layout: tuple[int, ...]) -> Collate:
    start_text, stop_text, start_audio, stop_audio, num_latents, is_upstream = layout
    sizes = GptSizes(
        start_text=start_text,
        stop_text=stop_text,
        start_audio=start_audio,
        stop_audio=stop_audio,
        num_latents=num_latents,
    )
    return make_collate(sizes, bool(is_upstream))


FAMILY = ModelFamily(
    name="xtts",
    label="XTTS v2",
    summary="Clones a voice from seconds and speaks 17 languages; for a GPU. Needs the published "
    "checkpoint folder as its base.",
    options=Options,
    licence="code MIT; the published weights are under the Coqui Public Model License, "
    "non-commercial use only",
    load=load,
    featurizer=make_featurizer,
    survey=survey,
    counts=counts,
    collate=collate,
    losses=losses,
    validate=validate,
    blocks=blocks,
    synthesize=synthesize,
    export=export,
    # Not measured. 5e-6 is the rate of coqui-tts's recipe, 1.0 is Prodigy's default.
    learning_rates={"adamw": 5e-6, "prodigy": 1.0, "schedule_free_adamw": 1e-5},
    draws=draws,
    checks=checks,  # short sentences may fail to end, which no loss shows
    publish=publish,
    terms=terms,
    stream=stream,
    preview_texts=preview_texts,
    synthetic=SYNTHETIC,
)

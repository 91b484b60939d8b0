"""IndexTTS-2: fine-tune its GPT from precomputed manifests or from audio."""

from pathlib import Path

from trainer.core.specs import Featurizer, ModelFamily
from trainer.models.indextts2.checkpoint.base_model import open_base_model
from trainer.models.indextts2.checkpoint.weights import export, load, publish, terms
from trainer.models.indextts2.inference.code_plot import illustrate
from trainer.models.indextts2.inference.synthesis import silence, synthesize
from trainer.models.indextts2.inference.text_preview import preview_texts
from trainer.models.indextts2.options import Options
from trainer.models.indextts2.training.batches import collate, counts
from trainer.models.indextts2.training.featurizer import IndexFeaturizer
from trainer.models.indextts2.training.losses import blocks, losses, validate
from trainer.models.indextts2.training.references import draws
from trainer.models.indextts2.training.survey import survey
from trainer.models.indextts2.training.synthetic import SYNTHETIC


def make_featurizer(base: Path | None, options: Options) -> Featurizer:
    """Return the featurizer for a base."""
    # Voices are computed with the encoders of the base, so each base has features of its own.
    return IndexFeaturizer(open_base_model(base), options)


FAMILY = ModelFamily(
    name="indextts2",
    label="IndexTTS-2",
    summary="Fine-tunes the GPT of IndexTTS-2.0 for another language or voice, from the "
    "community's precomputed manifests or from audio; the original package makes the audio.",
    options=Options,
    licence="code MIT; the published weights are under the bilibili model licence, the codec "
    "for audio under CC-BY-NC-4.0",
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
    # Not measured. Community trainers use 1e-5 to 2e-5 with AdamW; 1.0 is Prodigy's default.
    learning_rates={"adamw": 1e-5, "prodigy": 1.0, "schedule_free_adamw": 2e-5},
    draws=draws,
    publish=publish,
    terms=terms,
    silent=silence,  # unlike other families, it needs a package that may be missing
    illustrate=illustrate,
    preview_texts=preview_texts,
    synthetic=SYNTHETIC,
)

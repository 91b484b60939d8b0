"""FastSpeech 2: non-autoregressive text to speech that predicts durations, pitch and energy."""

from pathlib import Path

from trainer.core.specs import Featurizer, ModelFamily
from trainer.models._layers.mel import MelSettings
from trainer.models.fastspeech2.checkpoint.weights import export, load
from trainer.models.fastspeech2.inference.synthesis import stream, synthesize
from trainer.models.fastspeech2.inference.text_preview import preview_texts
from trainer.models.fastspeech2.options import Options
from trainer.models.fastspeech2.training.batches import collate, counts
from trainer.models.fastspeech2.training.featurizer import SpeechFeaturizer
from trainer.models.fastspeech2.training.losses import blocks, losses, validate
from trainer.models.fastspeech2.training.survey import survey
from trainer.models.fastspeech2.training.synthetic import SYNTHETIC


def make_featurizer(base: Path | None, options: Options) -> Featurizer:
    """Return the featurizer, which does not depend on the base checkpoint."""
    return SpeechFeaturizer(MelSettings(), options.trim_silence)


FAMILY = ModelFamily(
    name="fastspeech2",
    label="FastSpeech 2",
    summary="Fast, small and stable; the small size learns a voice in minutes on a CPU.",
    options=Options,
    licence="MIT; no weights included",
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
    stream=stream,
    preview_texts=preview_texts,
    synthetic=SYNTHETIC,
    # The best rates of the sweeps in benchmarks/results/race_all.json (small size, bundled base, 37
    # steps). Kron is the exception: its best rate diverged over 150 steps, a tenth of it did well.
    learning_rates={
        "adamw": 2e-3,
        "prodigy": 1.0,  # a factor on the rate that it estimates itself
        "schedule_free_adamw": 4e-3,
        "adafactor": 2e-2,
        "kron": 1e-2,
        "lion": 1e-3,
        "mars_lion": 1e-3,
        "mars_shampoo": 5e-3,
        "muon": 5e-3,
    },
)

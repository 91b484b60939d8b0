"""Named presets: RunConfig values that replace everything but the data and the model family.

Values without a source in a comment or docstring were chosen by hand as starting points.
"""

from dataclasses import dataclass

from trainer.core.errors import UnknownEntry
from trainer.core.options import Values, unknown_name
from trainer.core.run_config import RunConfig, merge_values

# `estimate` compares the counted peak of the largest step with this share.
USABLE_SHARE = 0.9
"""Share of the device's memory that a plan may use (chosen by hand). The CUDA context, PyTorch's
libraries and fragmentation take the rest."""


@dataclass(frozen=True)
class Preset:
    """Values merged into a RunConfig's JSON; empty `families` means the preset fits all of them."""

    name: str
    label: str
    summary: str
    values: Values
    families: tuple[str, ...] = ()


def apply_preset(config: RunConfig, name: str) -> RunConfig:
    """Return the configuration with the preset's values in place of its own.

    Raises:
        UnknownEntry: no preset has this name.
    """
    if name not in PRESETS:
        raise UnknownEntry(unknown_name(name, list(PRESETS), "preset"))
    values = config.to_json()
    # A preset sets steps or epochs; a value left over from the form would win over its own.
    values["training"] |= {"steps": None, "epochs": None}
    return RunConfig.from_json(merge_values(values, PRESETS[name].values))


def _adamw(**options: object) -> Values:
    return {"name": "adamw", "options": options}


def _xtts(epochs: float, batch_size: int, accumulate: int, **training: object) -> Values:
    """Return settings for XTTS v2: the published optimizer plus gradient clipping and a warm-up.

    Source: coqui-tts' recipe for the GPT: AdamW, learning rate 5e-6, betas 0.9/0.96, weight decay
    0.01 on weights only, batch 3 x 84. The recipe has no clipping and no warm-up; clipping at 1 and
    50 warm-up steps were chosen by hand.
    """
    sizes = {"epochs": epochs, "batch_size": batch_size, "accumulate": accumulate}
    return {
        # Presets for one family name it, so that they also work on the command line alone.
        "family": {"name": "xtts", "options": {}},
        "training": {"clip_norm": 1.0} | sizes | training,
        "optimizer": _adamw(lr=5e-6, beta1=0.9, beta2=0.96, eps=1e-8, weight_decay=0.01),
        "schedule": {"name": "cosine", "options": {"warmup_steps": 50}},
        "optimizations": {"sdpa": {}, "mixed_precision": {"mode": "auto"}},
    }


def _indextts2_korean() -> Values:
    """Return the settings of the IndexTTS-2 Korean study, whose AdamW run took 240,000 steps.

    Source: the community's trainer: AdamW, weight decay 0.01, 1,000 warm-up steps, cosine decay,
    clipping at 1, loss weights 0.2 for text and 0.8 for audio. Two values differ from it: its
    learning rate is 2e-5 and its cosine ends at zero, while our schedule keeps a final share.
    """
    return {
        "family": {"name": "indextts2", "options": {"text_weight": 0.2, "mel_weight": 0.8}},
        "training": {"steps": 240_000, "batch_size": 8, "clip_norm": 1.0},
        "optimizer": _adamw(lr=1e-5, weight_decay=0.01, beta1=0.9, beta2=0.999, eps=1e-8),
        "schedule": {"name": "cosine", "options": {"warmup_steps": 1000}},
        "optimizations": {"sdpa": {}, "mixed_precision": {"mode": "auto"}},
    }


def _xtts_on(gib: int, batch_size: int, accumulate: int, **boxes: Values) -> Preset:
    """Return a preset whose largest step is estimated to fit a GPU with `gib` GiB of memory.

    The fit is estimated, not measured: `python -m trainer estimate --preset xtts-12gb --size full
    --gpu-memory 12` counts clips of 11.6 s at the published size.
    """
    values = _xtts(10, batch_size, accumulate, patience=4, validate_every="1 epochs")
    values["optimizations"] |= boxes  # safe in place: `_xtts` builds a new dict on every call
    # In bf16 alone the smallest updates would be lost, so the 8 GB preset rounds stochastically.
    what = "all weights, stored in bf16 only" if "bf16_weights" in boxes else "all weights"
    return Preset(
        f"xtts-{gib}gb",
        f"XTTS v2: GPU with {gib} GB",
        f"Batch {batch_size} x {accumulate}, {what}; the largest step is estimated to fit.",
        values,
        ("xtts",),
    )


def _study(lr: float, warmup_steps: int, weight_decay: float) -> Values:
    """Return the settings of the FastSpeech 2 optimizer study for the standard model size.

    Source: the study's tables: rate halved at 200k, 400k and 600k steps, eps 1e-8, betas 0.9/0.98,
    clipping at 0.5.
    """
    milestones = {"milestones": "200000,400000,600000", "rate": 0.5}
    return {
        "family": {"name": "fastspeech2", "options": {"size": "standard"}},
        "training": {"epochs": None, "steps": 900_000, "batch_size": 8, "clip_norm": 0.5},
        "optimizer": _adamw(lr=lr, weight_decay=weight_decay, eps=1e-8, beta1=0.9, beta2=0.98),
        "schedule": {
            "name": "warmup_plateau_anneal",
            "options": {"warmup_steps": warmup_steps} | milestones,
        },
    }


_PRESETS = (
    Preset(
        "quick",
        "Quick try",
        "300 steps: hear within minutes whether data and settings make sense.",
        # 300 is also the least length of a run with automatic length; see `count_steps`.
        {"training": {"steps": 300}, "schedule": {"name": "cosine", "options": {}}},
    ),
    Preset(
        "balanced",
        "Balanced",
        "30 epochs; the usual choice.",
        {"training": {"epochs": 30}, "schedule": {"name": "cosine", "options": {}}},
    ),
    Preset(
        "quality",
        "Best quality",
        "100 epochs with averaged weights (EMA) and early stopping.",
        {
            # A decay of 0.999 averages over about 1,000 steps.
            "training": {"epochs": 100, "ema_decay": 0.999, "patience": 10},
            "schedule": {"name": "cosine", "options": {}},
        },
    ),
    Preset(
        "low-memory",
        "Low memory",
        "Batch 2 x 4 with gradient checkpointing, SDPA and mixed precision.",
        {
            # The effective batch is that of 8 x 1, with a quarter of its activations.
            "training": {"epochs": 30, "batch_size": 2, "accumulate": 4},
            "optimizations": {
                "gradient_checkpointing": {},
                "sdpa": {},
                "mixed_precision": {"mode": "auto"},
            },
        },
    ),
    Preset(
        "fast-convergence",
        "Fast convergence",
        "20 epochs with a short warm-up and early stopping: a usable voice in few steps.",
        {
            "training": {"epochs": 20, "patience": 5, "validate_every": "1 epochs"},
            # A shorter memory than 0.999 adapts sooner; 0.98 is FastSpeech 2's published value.
            "optimizer": _adamw(beta2=0.98),
            "schedule": {"name": "cosine", "options": {"warmup_steps": 20}},
        },
    ),
    Preset(
        "aggressive-lr",
        "Aggressive learning rate",
        "Twice the FastSpeech 2 rate with tight clipping; watch the gradient norm.",
        {
            "training": {"epochs": 20, "clip_norm": 0.5},
            # AdamW's best rate for FastSpeech 2 was 2e-3 (benchmarks/results/race_all.json).
            "optimizer": _adamw(lr=4e-3),
            "schedule": {"name": "cosine", "options": {}},
        },
        ("fastspeech2",),
    ),
    Preset(
        "fastspeech2-standard",
        "FastSpeech 2 study: standard",
        "35 M parameters, rate 1e-4, 8,000 warm-up steps; for hours of data and a GPU.",
        _study(1e-4, 8_000, 0.001),
        ("fastspeech2",),
    ),
    Preset(
        "fastspeech2-aggressive",
        "FastSpeech 2 study: aggressive",
        "35 M parameters, rate 2e-4, 4,000 warm-up steps.",
        _study(2e-4, 4_000, 0.001),
        ("fastspeech2",),
    ),
    Preset(
        "fastspeech2-conservative",
        "FastSpeech 2 study: conservative",
        "35 M parameters, rate 5e-5, 12,000 warm-up steps, weight decay 0.0005.",
        _study(5e-5, 12_000, 0.0005),
        ("fastspeech2",),
    ),
    Preset(
        "xtts-tiny",
        "XTTS v2: trial without weights",
        "A tiny random network for any machine: everything works, but it cannot speak.",
        {
            "family": {"name": "xtts", "options": {"dropout": 0.0}},
            "training": {"steps": 100},
            "optimizer": _adamw(lr=3e-3),  # random weights learn at far higher rates than trained
            "schedule": {"name": "cosine", "options": {}},
            "optimizations": {"sdpa": {}},
        },
        ("xtts",),
    ),
    Preset(
        "xtts-recipe",
        "XTTS v2: published recipe",
        "Rate 5e-6, effective batch 252 (3 x 84), as published; for hours of data.",
        # 3 x 84 = 252: coqui-tts advises an effective batch of at least 252 for this model.
        _xtts(10, 3, 84),
        ("xtts",),
    ),
    Preset(
        "xtts-voice",
        "XTTS v2: one voice",
        "10 epochs, effective batch 16, early stopping; for minutes of data.",
        # 16, not 252: minutes of speech have too few clips for more than a few such steps an epoch.
        _xtts(10, 4, 4, patience=4, validate_every="1 epochs"),
        ("xtts",),
    ),
    Preset(
        "xtts-low-memory",
        "XTTS v2: low memory",
        "Like one voice, with batch size 1, gradient checkpointing and frozen conditioning.",
        _xtts(10, 1, 16, patience=4, validate_every="1 epochs")
        | {
            # Frozen weights need no gradient and no optimizer state.
            "family": {"name": "xtts", "options": {"freeze": "conditioning"}},
            "optimizations": {
                "sdpa": {},
                "mixed_precision": {"mode": "auto"},
                "gradient_checkpointing": {},
            },
        },
        ("xtts",),
    ),
    Preset(
        "indextts2-korean",
        "IndexTTS-2 Korean, batch 8",
        "Rate 1e-5, batch 8, 240,000 steps: the study whose optimizers a race compares.",
        _indextts2_korean(),
        ("indextts2",),
    ),
    # Batch sizes are the largest that fit by estimate; the effective batch is 16 up to 24 GB.
    _xtts_on(
        8,
        8,
        2,
        bf16_weights={"updates": "stochastic"},
        gradient_checkpointing={"level": "medium"},
    ),
    _xtts_on(12, 8, 2, gradient_checkpointing={"level": "light"}),
    _xtts_on(16, 8, 2),
    _xtts_on(24, 16, 1),
    _xtts_on(48, 32, 1),
    _xtts_on(80, 64, 1),
)

PRESETS: dict[str, Preset] = {preset.name: preset for preset in _PRESETS}

"""Sizes and inputs of a small IndexTTS-2 with which both sides of the comparison compute.

Weights and inputs follow from their names (`xtts_inputs.draw`); it needs numpy and torch alone.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

try:
    from tests.parity.xtts_inputs import draw
except ModuleNotFoundError:  # run as a script, whose folder is on the path instead
    from xtts_inputs import draw

GPT: dict[str, Any] = {
    "layers": 3, "model_dim": 64, "heads": 4, "max_mel_tokens": 60, "max_text_tokens": 40,
    "number_text_tokens": 50, "number_mel_codes": 102, "start_mel_token": 100,
    "stop_mel_token": 101, "start_text_token": 0, "stop_text_token": 1,
    "condition_type": "conformer_perceiver", "condition_num_latent": 32,
    "use_mel_codes_as_input": True, "mel_length_compression": 1024, "train_solo_embeddings": False,
    "condition_module": {
        "output_size": 32, "linear_units": 48, "attention_heads": 2, "num_blocks": 3,
        "input_layer": "conv2d2", "perceiver_mult": 2,
    },
    "emo_condition_module": {
        "output_size": 16, "linear_units": 24, "attention_heads": 2, "num_blocks": 2,
        "input_layer": "conv2d2", "perceiver_mult": 2,
    },
}  # fmt: skip
"""The section `gpt` of a config.yaml; the widths that upstream fixes are the published ones."""

CODEC = {
    "codebook_size": 96, "hidden_size": 32, "codebook_dim": 8, "vocos_dim": 24,
    "vocos_intermediate_dim": 40, "vocos_num_layers": 3,
}  # fmt: skip

HEARING: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 18, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip
"""A small w2v-bert-2.0, all else as published; its last layer lies above the one that is used."""

SPEED: dict[str, Any] = GPT | {
    "layers": 4, "model_dim": 256, "heads": 4, "max_mel_tokens": 600, "max_text_tokens": 200,
    "number_text_tokens": 12000, "number_mel_codes": 8194, "start_mel_token": 8192,
    "stop_mel_token": 8193,
}  # fmt: skip
"""The network whose steps are timed: the published tables on a small trunk."""

TEXTS = ([5, 9, 2, 33, 49, 7], [11, 3, 28])
CODES = ([4, 99, 17, 17, 63, 0, 8, 51], [72, 5, 5, 31, 90])
FRAMES = (29, 18)
WAVE_SAMPLES = (16000, 16197)
FEATURE_WIDTH = 1024


def features() -> tuple[Tensor, Tensor]:
    """Return semantic features (B, T, 1024) and how many frames of each row are valid (B,)."""
    return draw("features", (len(FRAMES), max(FRAMES), FEATURE_WIDTH)), torch.tensor(FRAMES)


def codec_features() -> Tensor:
    """Return features (1, T, F) for the small codec."""
    return draw("codec.features", (1, 40, CODEC["hidden_size"]))


def waves() -> list[np.ndarray]:
    """Return audio (T_wav,) float32 at 16 kHz."""
    return [0.1 * draw(f"wave.{count}", (count,)).numpy() for count in WAVE_SAMPLES]


def speed_clips() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return text ids and codes of eight clips of 2 to 9 s."""
    rng = np.random.default_rng(0)
    lengths = [(int(seconds * 9), int(seconds * 50)) for seconds in np.linspace(2, 9, 8)]
    return [(rng.integers(3, 12000, text), rng.integers(0, 8192, codes)) for text, codes in lengths]


def weights(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Draw a weight for every name; the table of positions follows from constants."""
    return {name: draw(name, shape) for name, shape in shapes.items() if not is_fixed(name)}


def is_fixed(name: str) -> bool:
    """Whether a tensor follows from the network's constants and so is not drawn."""
    return name.endswith("pos_enc.pe")


def trained_names(names: list[str]) -> list[str]:
    """Return the parameters whose gradients are compared."""
    return [name for name in names if not is_fixed(name)]

"""Weights, sizes and inputs of a small XTTS, drawn from a seed that does not depend on torch.

Both sides of the comparison import this: it needs numpy and torch alone. Every tensor has its own
generator, named by its key, so that adding a key changes no other tensor.
"""

import json
import re
import wave
import zlib
from collections.abc import Iterable, Mapping
from itertools import groupby, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

GPT = {
    "layers": 3,
    "width": 64,
    "heads": 4,
    "num_text_tokens": 300,
    "max_text_tokens": 60,
    "max_audio_tokens": 60,
}
"""What differs from the published GPT; the conditioning branch has its published depth."""

DVAE = {"hidden": 32, "codebook_width": 32}
VOCODER = {"latent_width": 64, "speaker_width": 32, "width": 32}
SPEAKER = {"blocks": (1, 1, 1, 1), "widths": (8, 8, 16, 16), "embedding": 32}

START_AUDIO, STOP_AUDIO = 1024, 1025
STOP_BIAS = 3.0
"""Added to the stop code's bias where a sentence must end before the limit."""

TEXT = "the hat is on the mat, and then the rain began."
"""Spoken from folders; the small vocabulary knows its letters."""

_FIXED = re.compile(r"torch_spec|num_batches_tracked|discrete_loss")
_NORM_GAIN = re.compile(
    r"(norm|ln_\w+|bn\d|downsample\.1|attention\.2)\.weight$|gamma$|running_var$"
)


def is_fixed(key: str) -> bool:
    """Whether a tensor follows from the network's constants and so is not drawn."""
    return bool(_FIXED.search(key))


def draw(key: str, shape: Iterable[int]) -> Tensor:
    """Return a float32 tensor of this shape that follows from the key alone."""
    shape = tuple(shape)
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(key.encode())))
    values = generator.standard_normal(shape, dtype=np.float64)
    if _NORM_GAIN.search(key):
        values = 1 + 0.1 * np.abs(values)
    elif key.endswith("original0"):
        # The gain of weight norm: about the length that a fresh direction has.
        values = 1 + 0.1 * values
    elif len(shape) == 1:
        values = 0.1 * values
    else:
        input_major = ".h." in f".{key}"
        inputs = shape[0] if input_major else int(np.prod(shape[1:]))
        values = values / np.sqrt(inputs)
    return torch.from_numpy(values.astype(np.float32))


def draw_state(shapes: Mapping[str, Iterable[int]]) -> dict[str, Tensor]:
    """Return the drawn tensors of all keys that are not fixed."""
    return {key: draw(key, shape) for key, shape in sorted(shapes.items()) if not is_fixed(key)}


def speech(name: str, seconds: float, rate: int) -> Tensor:
    """Return something with a moving spectrum. (1, T_wav), float32 within -1..1."""
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    time = np.arange(int(seconds * rate)) / rate
    audio = 0.02 * generator.standard_normal(len(time))
    for _ in range(8):
        pitch, speed, phase = generator.uniform((80, 0.5, 0), (3000, 4, 6.28))
        envelope = np.sin(2 * np.pi * speed * time + phase) ** 2
        audio += 0.1 * envelope * np.sin(2 * np.pi * pitch * time + phase)
    return torch.from_numpy(audio.astype(np.float32))[None]


def write_corpus(folder: Path) -> Path:
    """Write six short clips whose text the small vocabulary knows, and their CSV; return it."""
    lines = ["audio_file|text|speaker_name"]
    for number, text in enumerate(
        ("the hat", "a mat", "rain began", "then", "the end", "in the air")
    ):
        samples = (speech(text, 1.2 + 0.1 * number, 22050)[0].numpy() * 32767).astype("<i2")
        name = f"{number}.wav"
        with wave.open(str(folder / name), "wb") as file:
            file.setparams((1, 2, 22050, len(samples), "NONE", ""))
            file.writeframes(samples.tobytes())
        lines.append(f"{name}|{text}|one")
    (folder / "clips.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "clips.csv"


def noise_mel() -> Tensor:
    """Return frames without a mean, whose codes vary more than those of speech. (1, 80, 160)"""
    return draw("mel of noise", (1, 80, 160)) * np.sqrt(80 * 160)


def mel_stats() -> Tensor:
    """Return the divisors of the 80 mel bands. (80,)"""
    generator = np.random.Generator(np.random.PCG64(80))
    return torch.from_numpy(generator.uniform(1.5, 3.5, 80).astype(np.float32))


def training_clips() -> list[dict[str, Tensor]]:
    """Return three clips of unequal lengths, with references of one length.

    tokens (L,) and codes (n,) int64; reference (80, 40); masked (2,) int64, a range of codes.
    """
    generator = np.random.Generator(np.random.PCG64(3))
    clips = []
    for number, (text, audio) in enumerate(((7, 23), (19, 41), (11, 12))):
        clips.append(
            {
                "tokens": torch.from_numpy(generator.integers(2, 261, text)),
                "codes": torch.from_numpy(generator.integers(0, 1024, audio)),
                "reference": draw(f"reference {number}", (80, 40)) * 8,
                "masked": torch.tensor((1, 3)),
            }
        )
    return clips


def sentence() -> Tensor:
    """Return the text tokens of a sentence to speak. (T_text,) int64"""
    generator = np.random.Generator(np.random.PCG64(5))
    return torch.from_numpy(generator.integers(2, 261, 15))


def vocabulary() -> str:
    """Return a vocab.json of the published format whose ids end where the small GPT's do."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    symbols = [*letters, *"'.,?!-:;", "th", "the", "in", "er", "an"]
    ids = {"[STOP]": 0, "[UNK]": 1, "[SPACE]": 2}
    ids |= {symbol: number for number, symbol in enumerate(symbols, start=3)}
    ids |= {"[en]": 259, "[START]": 261, "[de]": 262, "[es]": 263}
    ids |= {f"[unused{number}]": number for number in range(264, GPT["num_text_tokens"])}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "special": True, "content": token} | special
        for token, number in ids.items()
        if token.startswith("[")
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": "[UNK]",
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "vocab": ids,
        "merges": ["t h", "th e", "i n", "e r", "a n"],
    }
    parts = {"normalizer": None, "post_processor": None, "decoder": None}
    head = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added}
    return json.dumps(head | parts | {"pre_tokenizer": {"type": "Whitespace"}, "model": model})


def vocoder_inputs(width: int, speaker_width: int) -> tuple[Tensor, Tensor]:
    """Return latents (1, 9, width) and a speaker of length 1. (1, speaker_width, 1)"""
    speaker = draw("speaker", (1, speaker_width, 1))
    return draw("latents", (1, 9, width)) * np.sqrt(9 * width), speaker / speaker.norm()


def pack(shapes: Mapping[str, Iterable[int]]) -> dict[str, str]:
    """Write keys that differ in their numbers alone, and have one shape, on one line."""
    lines: dict[str, str] = {}
    ordered = sorted((re.sub(r"\d+", "#", key), _text(shape), key) for key, shape in shapes.items())
    for (pattern, shape), group in groupby(ordered, key=lambda item: item[:2]):
        for places in _boxes({tuple(map(int, re.findall(r"\d+", key))) for *_, key in group}):
            numbers = iter(places)
            lines[re.sub("#", lambda _, numbers=numbers: _span(next(numbers)), pattern)] = shape
    return lines


def unpack(lines: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Return what `pack` was given."""
    shapes = {}
    for line, shape in lines.items():
        parts = re.split(r"\[(\d+)-(\d+)\]|(\d+)", line)
        choices = [
            [part] if place % 4 == 0 else _numbers(*parts[place : place + 3])
            for place, part in enumerate(parts)
            if place % 4 in (0, 1)
        ]
        for combination in product(*choices):
            shapes["".join(combination)] = tuple(json.loads(shape))
    return shapes


def _text(shape: Iterable[int]) -> str:
    return json.dumps(list(shape))


def _numbers(first: str | None, last: str | None, only: str | None) -> list[str]:
    if only is not None:
        return [only]
    return [str(number) for number in range(int(first or 0), int(last or 0) + 1)]


def _span(place: tuple[int, int]) -> str:
    return str(place[0]) if place[0] == place[1] else f"[{place[0]}-{place[1]}]"


def _boxes(indices: set[tuple[int, ...]]) -> list[tuple[tuple[int, int], ...]]:
    """Cover the index tuples by boxes of ranges: one if they fill one, otherwise one each."""
    columns: list[Any] = list(zip(*indices, strict=True))
    spans = tuple((min(column), max(column)) for column in columns)
    if len(indices) == int(np.prod([last - first + 1 for first, last in spans])):
        return [spans]
    by_first: dict[int, set[tuple[int, ...]]] = {}
    for index in indices:
        by_first.setdefault(index[0], set()).add(index)
    if len(by_first) > 1:
        return [box for first in sorted(by_first) for box in _boxes(by_first[first])]
    return [tuple((number, number) for number in index) for index in sorted(indices)]

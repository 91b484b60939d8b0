"""Collate clips to contiguous rows, and count the positions and targets of a clip.

A row is [voice | START text STOP | START codes | padding]. The targets of a clip are its text
tokens and one stop, and its audio codes and one stop.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.core.errors import DataError
from trainer.core.types import Features
from trainer.models._layers.packing import SequenceLayout, join_ids, pad_ids
from trainer.models.indextts2.network.sizes import Sizes

OWN_EMOTION = 7
"""Index in the layout of the flag that a clip uses its own emotion vector."""


def layout_of(sizes: Sizes, *, own_emotion: bool = False) -> np.ndarray:
    """Return what `collate` must know as int32 (8,); it is stored with every clip."""
    return np.array(
        [
            sizes.num_prompt,
            sizes.start_text,
            sizes.stop_text,
            sizes.start_audio,
            sizes.stop_audio,
            sizes.text_positions,
            sizes.audio_positions,
            own_emotion,
        ],
        np.int32,
    )


def counts(features: Features) -> dict[str, float]:
    """Return the number of positions in a clip's row, and of text and audio targets."""
    text, audio = len(features["tokens"]) + 1, len(features["codes"]) + 1
    positions = int(features["layout"][0]) + text + 1 + audio
    return {"positions": float(positions), "text": float(text), "audio": float(audio)}


def collate(clips: Sequence[Features]) -> dict[str, Tensor]:
    """Lay out clips as rows.

    Returns text_ids (B, T_text), audio_ids (B, T_audio) int64, padded with 0; layout (B, T) int64,
    the index of each position into [voice | text_ids | audio_ids | zero]; position_mask (B, T)
    bool; text_index, text_targets, audio_index, audio_targets (K,) int64: indices into the
    flattened rows and the token to predict there; and the voice: condition (B, num_latents, D) and
    emotion (B, D), or reference (B, T_ref, F) and reference_valid (B, T_ref) bool.

    Raises:
        DataError: a clip has more tokens or codes than the position tables have rows.
    """
    # The network's sizes travel with the clips, because `collate` gets nothing else.
    num_prompt, start_text, stop_text, start_audio, stop_audio, *_ = map(int, clips[0]["layout"])
    for clip in clips:
        _check_length(clip)
    texts = [join_ids(start_text, clip["tokens"], [stop_text]) for clip in clips]
    audios = [join_ids(start_audio, clip["codes"], []) for clip in clips]
    rows = SequenceLayout(
        num_prompt, [len(text) for text in texts], [len(audio) for audio in audios]
    )
    targets = [np.append(audio[1:], stop_audio) for audio in audios]
    # The stop of the text predicts nothing: the audio after it starts with a fixed token.
    text_places = [range(num_prompt, num_prompt + len(text) - 1) for text in texts]
    return {
        "text_ids": pad_ids(texts),
        "audio_ids": pad_ids(audios),
        "layout": rows.layout(max(map(len, texts))),
        "position_mask": rows.mask(),
        "text_index": rows.places(text_places),
        "text_targets": torch.from_numpy(np.concatenate([text[1:] for text in texts])),
        "audio_index": rows.places(rows.audio_places()),
        "audio_targets": torch.from_numpy(np.concatenate(targets)),
    } | _voices(clips)


def _voices(clips: Sequence[Features]) -> dict[str, Tensor]:
    if "reference" not in clips[0]:
        return {
            name: torch.from_numpy(np.stack([clip[name] for clip in clips]).astype(np.float32))
            for name in ("condition", "emotion")
        }
    lengths = [len(clip["reference"]) for clip in clips]
    padded = np.zeros((len(clips), max(lengths), clips[0]["reference"].shape[1]), np.float32)
    for row, clip in enumerate(clips):
        padded[row, : lengths[row]] = clip["reference"]
    # The conformers mask padding, unlike XTTS's encoder, so references may differ in length.
    valid = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    return {"reference": torch.from_numpy(padded), "reference_valid": valid}


def _check_length(clip: Features) -> None:
    # Text takes a start and a stop position, audio only a start: nothing follows its stop.
    most_text, most_audio = int(clip["layout"][5]) - 2, int(clip["layout"][6]) - 1
    num_tokens, num_codes = len(clip["tokens"]), len(clip["codes"])
    if num_tokens > most_text:
        raise DataError(
            f"A text has {num_tokens} tokens; this network accepts at most {most_text}. "
            "Split the clip."
        )
    if num_codes > most_audio:
        raise DataError(
            f"A clip has {num_codes} audio codes; this network accepts at most {most_audio}. "
            "Split the clip."
        )

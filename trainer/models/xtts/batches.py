"""Features of several clips to contiguous rows, and how much of each clip is trained.

A row is [latents | START text STOP | START codes STOP STOP STOP | padding]. Each clip trains its
text and one stop, and its codes and four stops. Upstream hides the text's STOP from the audio in
training though not at inference; here it is visible in both, unless upstream masking is asked for.

With upstream masking two faults of the original are kept too, so that its numbers can be
reproduced: the codes of a reference that was cut out of the clip itself are left out of the loss
only in the last row of a batch, and there in a range four times too far and too long (it counts in
mel frames, of which a code has four).
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.data.types import Features
from trainer.errors import DataError
from trainer.models._layers.rows import Rows, join_ids, pad_ids
from trainer.models.xtts.sizes import CODE_STRIDE, HOP_LENGTH, GptSizes

IGNORED = -100
"""The target of a position that trains nothing."""

_NUM_STOPS = 4
_NUM_LATENTS = GptSizes().num_latents

Collate = Callable[[Sequence[Features]], dict[str, Tensor]]


def counts(features: Features) -> dict[str, float]:
    """Return how many positions a clip's row has, and how many text and audio targets.

    Codes that a draw leaves out of the loss are counted all the same, for totals are made before
    the draw; the batch's `num_trained` makes up for them.
    """
    text, audio = len(features["tokens"]) + 1, len(features["codes"]) + _NUM_STOPS
    positions = _NUM_LATENTS + text + 1 + audio
    return {"positions": float(positions), "text": float(text), "audio": float(audio)}


def make_collate(sizes: GptSizes, upstream: bool = False) -> Collate:
    """Return the collate function of a network; `upstream` keeps the original's masking faults."""

    def collate(clips: Sequence[Features]) -> dict[str, Tensor]:
        """Lay clips out as rows.

        Returns text_ids (B, T_text), audio_ids (B, T_audio) int64, padded with 0; layout (B, T)
        int64, each position's place in [latents | text_ids | audio_ids | zero]; position_mask
        (B, T) bool; text_index, text_targets, audio_index, audio_targets (K,) int64: places in the
        flattened rows and what must be predicted there; num_trained (B,) int64, how many
        audio targets of a clip are not ignored; reference (B, M, T_ref).
        """
        for clip in clips:
            _check_length(clip, sizes)
        texts = [join_ids(sizes.start_text, clip["tokens"], [sizes.stop_text]) for clip in clips]
        stops = [sizes.stop_audio] * (_NUM_STOPS - 1)
        audios = [join_ids(sizes.start_audio, clip["codes"], stops) for clip in clips]
        num_texts = [len(text) - upstream for text in texts]
        rows = Rows(sizes.num_latents, num_texts, [len(audio) for audio in audios])
        targets = _audio_targets(clips, sizes, upstream)
        return {
            "text_ids": pad_ids(texts),
            "audio_ids": pad_ids(audios),
            "layout": rows.layout(max(map(len, texts))),
            "position_mask": rows.mask(),
            "text_index": rows.places(_text_places(sizes, texts)),
            "text_targets": torch.from_numpy(np.concatenate([text[1:] for text in texts])),
            "audio_index": rows.places(rows.audio_places()),
            "audio_targets": torch.from_numpy(np.concatenate(targets)),
            "num_trained": torch.tensor([int((row != IGNORED).sum()) for row in targets]),
            "reference": _references(clips),
        }

    return collate


def _text_places(sizes: GptSizes, texts: list[np.ndarray]) -> list[range]:
    """Return the positions of each row from which a text token is predicted: all but STOP's."""
    return [range(sizes.num_latents, sizes.num_latents + len(text) - 1) for text in texts]


def _audio_targets(clips: Sequence[Features], sizes: GptSizes, upstream: bool) -> list[np.ndarray]:
    """Return what the audio positions of each clip must predict: (T_audio,) int64."""
    rows = []
    for row, clip in enumerate(clips):
        targets = np.full(len(clip["codes"]) + _NUM_STOPS, sizes.stop_audio, np.int64)
        targets[: len(clip["codes"])] = clip["codes"]
        first, end = (int(place) for place in clip["masked"])
        if upstream:
            factor = CODE_STRIDE // HOP_LENGTH if row == len(clips) - 1 else 0
            first, end = factor * first, factor * end
        targets[first:end] = IGNORED
        rows.append(targets)
    return rows


def _references(clips: Sequence[Features]) -> Tensor:
    """Stack the conditioning mels (B, M, T_ref), cropped to one length instead of padded."""
    wanted = int(clips[0]["reference_frames"])
    length = min(wanted, *(clip["reference"].shape[1] for clip in clips))
    return torch.from_numpy(np.stack([clip["reference"][:, :length] for clip in clips]))


def _check_length(clip: Features, sizes: GptSizes) -> None:
    num_tokens, num_codes = len(clip["tokens"]), len(clip["codes"])
    most_codes = sizes.audio_positions - _NUM_STOPS
    if num_tokens > sizes.max_text_tokens:
        raise DataError(
            f"A text has {num_tokens} tokens; this network reads at most {sizes.max_text_tokens}. "
            "Split the clip."
        )
    if num_codes > most_codes:
        raise DataError(
            f"A clip has {num_codes} codes of audio; this network reads at most {most_codes}. "
            "Split the clip."
        )

"""Collate clips to contiguous rows, and count the positions and targets of a clip.

A row is [latents | START text STOP | START codes STOP STOP STOP | padding]. The targets of a clip
are its text and one stop, and its codes and four stops. In training, coqui-tts hides the text's
STOP from the audio, but not at inference. Here it is visible in both, unless upstream masking is
on.

Upstream masking also reproduces two bugs of coqui-tts, for comparisons of numbers. If a reference
was cut from the clip itself, its codes should be left out of the loss. Upstream does that only in
the last row of a batch, and there in a range that is four times too far and too long, because it
counts mel frames, of which a code has four.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.core.errors import DataError
from trainer.core.types import Features
from trainer.models._layers.packing import SequenceLayout, join_ids, pad_ids
from trainer.models._layers.token_losses import IGNORED
from trainer.models.xtts.network.sizes import CODE_STRIDE, HOP_LENGTH, GptSizes

_NUM_STOPS = 4  # as in coqui-tts, which pads codes by three and appends one more
_NUM_LATENTS = GptSizes().num_latents

Collate = Callable[[Sequence[Features]], dict[str, Tensor]]


def counts(features: Features) -> dict[str, float]:
    """Return the number of positions in a clip's row, and of text and audio targets.

    Codes that are left out of the loss count too, because totals are computed before references
    are drawn; the batch's `num_trained` corrects for them.
    """
    text, audio = len(features["tokens"]) + 1, len(features["codes"]) + _NUM_STOPS
    positions = _NUM_LATENTS + text + 1 + audio
    return {"positions": float(positions), "text": float(text), "audio": float(audio)}


def make_collate(sizes: GptSizes, upstream: bool = False) -> Collate:
    """Return the collate function of a network; `upstream` reproduces coqui-tts's masking."""

    def collate(clips: Sequence[Features]) -> dict[str, Tensor]:
        """Lay out clips as rows.

        Returns text_ids (B, T_text), audio_ids (B, T_audio) int64, padded with 0; layout (B, T)
        int64, the index of each position into [latents | text_ids | audio_ids | zero];
        position_mask (B, T) bool; text_index, text_targets, audio_index, audio_targets (K,) int64:
        indices into the flattened rows and the token to predict there; num_trained (B,) int64, the
        number of audio targets of a clip that are not ignored; reference (B, M, T_ref).
        """
        for clip in clips:
            _check_length(clip, sizes)
        texts = [join_ids(sizes.start_text, clip["tokens"], [sizes.stop_text]) for clip in clips]
        # The last stop is only a target: nothing is predicted after it.
        stops = [sizes.stop_audio] * (_NUM_STOPS - 1)
        audios = [join_ids(sizes.start_audio, clip["codes"], stops) for clip in clips]
        # Upstream's masking hides the text's STOP, so the row leaves it out.
        num_texts = [len(text) - upstream for text in texts]
        rows = SequenceLayout(sizes.num_latents, num_texts, [len(audio) for audio in audios])
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
    """Return the positions of each row that predict a text token: all text positions but STOP."""
    return [range(sizes.num_latents, sizes.num_latents + len(text) - 1) for text in texts]


def _audio_targets(clips: Sequence[Features], sizes: GptSizes, upstream: bool) -> list[np.ndarray]:
    """Return the targets of each clip's audio positions, (T_audio,) int64."""
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
    """Stack the conditioning mels (B, M, T_ref), cropped to a common length instead of padded.

    The conditioning encoder has no mask, so it would treat padding as audio.
    """
    # The length is drawn per step, not per clip, so all clips of a batch agree on it.
    wanted = int(clips[0]["reference_frames"])
    length = min(wanted, *(clip["reference"].shape[1] for clip in clips))
    return torch.from_numpy(np.stack([clip["reference"][:, :length] for clip in clips]))


def _check_length(clip: Features, sizes: GptSizes) -> None:
    num_tokens, num_codes = len(clip["tokens"]), len(clip["codes"])
    most_codes = sizes.audio_positions - _NUM_STOPS
    if num_tokens > sizes.max_text_tokens:
        raise DataError(
            f"A text has {num_tokens} tokens; this network accepts at most "
            f"{sizes.max_text_tokens}. Split the clip."
        )
    if num_codes > most_codes:
        raise DataError(
            f"A clip has {num_codes} audio codes; this network accepts at most {most_codes}. "
            "Split the clip."
        )

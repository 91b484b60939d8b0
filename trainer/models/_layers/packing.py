"""Lay out rows as [prompt | text | audio | padding], without padding between the parts.

Since padding stands only at the end of a row, causal attention is exact for every real position.
No mask tensor is needed, so the fastest attention kernels can be used.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class SequenceLayout:
    """Positions of prompt, text and audio in a batch of contiguous rows."""

    def __init__(self, num_prompt: int, num_texts: list[int], num_audios: list[int]) -> None:
        self.num_prompt = num_prompt
        self.num_texts = num_texts
        self.num_audios = num_audios
        pairs = zip(num_texts, num_audios, strict=True)
        self.lengths = [num_prompt + text + audio for text, audio in pairs]
        self.longest = max(self.lengths)

    def layout(self, text_width: int) -> Tensor:
        """Return for each position (B, T) its index into [prompt | text | audio | zero].

        text_width: the padded length of the text part. The last index is a zero vector, for
        padding.
        """
        first_text = self.num_prompt
        first_audio = first_text + text_width
        zero = first_audio + max(self.num_audios)
        # Positions that no part fills below read the zero vector: they are the padding.
        layout = np.full((len(self.lengths), self.longest), zero, np.int64)
        for row, places in enumerate(layout):
            text, audio = self.num_texts[row], self.num_audios[row]
            places[:first_text] = np.arange(first_text)
            places[first_text : first_text + text] = first_text + np.arange(text)
            places[first_text + text : self.lengths[row]] = first_audio + np.arange(audio)
        return torch.from_numpy(layout)

    def mask(self) -> Tensor:
        """Return a bool mask (B, T) that is True where a row is not padded."""
        return torch.arange(self.longest)[None] < torch.tensor(self.lengths)[:, None]

    def audio_places(self) -> list[range]:
        """Return the positions of the audio in each row."""
        pairs = zip(self.lengths, self.num_audios, strict=True)
        return [range(length - audio, length) for length, audio in pairs]

    def places(self, in_rows: list[range]) -> Tensor:
        """Turn positions in each row into indices (K,) int64 into the flattened rows."""
        # The rows lie one after another in the flattened batch, `longest` positions each.
        parts = [
            np.asarray(places, dtype=np.int64) + row * self.longest
            for row, places in enumerate(in_rows)
        ]
        return torch.from_numpy(np.concatenate(parts))


def join_ids(start: int, ids: np.ndarray, stops: Sequence[int]) -> np.ndarray:
    """Return ids (T,) with a start id before and stop ids after them, int64."""
    return np.concatenate([[start], ids, stops]).astype(np.int64)


def pad_ids(rows: Sequence[np.ndarray]) -> Tensor:
    """Stack ids (T,) of different lengths as (B, T) int64, 0 where padded."""
    # 0 may be a real token, but `layout` never points at padded ids.
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return torch.from_numpy(padded)


def arrange(parts: tuple[Tensor, ...], layout: Tensor) -> Tensor:
    """Gather vectors into contiguous rows.

    parts: each (B, K, D). layout: (B, T) int64, for each position the index into the joined parts,
    which are followed by one zero vector. Returns (B, T, D).
    """
    batch, _, width = parts[0].shape
    joined = torch.cat([*parts, parts[0].new_zeros(batch, 1, width)], dim=1)  # (B, K + 1, D)
    # One index_select over the flattened batch; gather would need indices of shape (B, T, D).
    first = torch.arange(batch, device=layout.device)[:, None] * joined.shape[1]
    places = (layout + first).flatten()
    return joined.flatten(0, 1).index_select(0, places).view(*layout.shape, width)

"""Contiguous rows [prompt | text | audio | padding]: where everything stands, and moving it there.

With padding only at their ends causal attention alone is exact for every real position, so no mask
tensor is ever made.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Rows:
    """Where everything stands in a batch of contiguous rows, `num_prompt` positions first."""

    def __init__(self, num_prompt: int, num_texts: list[int], num_audios: list[int]) -> None:
        self.num_prompt = num_prompt
        self.num_texts = num_texts
        self.num_audios = num_audios
        pairs = zip(num_texts, num_audios, strict=True)
        self.lengths = [num_prompt + text + audio for text, audio in pairs]
        self.longest = max(self.lengths)

    def layout(self, text_width: int) -> Tensor:
        """Return each position's place (B, T) in [prompt | text | audio | zero]."""
        first_text = self.num_prompt
        first_audio = first_text + text_width
        zero = first_audio + max(self.num_audios)
        layout = np.full((len(self.lengths), self.longest), zero, np.int64)
        for row, places in enumerate(layout):
            text, audio = self.num_texts[row], self.num_audios[row]
            places[:first_text] = np.arange(first_text)
            places[first_text : first_text + text] = first_text + np.arange(text)
            places[first_text + text : self.lengths[row]] = first_audio + np.arange(audio)
        return torch.from_numpy(layout)

    def mask(self) -> Tensor:
        """Return bool (B, T), True where a row has something."""
        return torch.arange(self.longest)[None] < torch.tensor(self.lengths)[:, None]

    def audio_places(self) -> list[range]:
        """Return the positions of the audio in each row."""
        pairs = zip(self.lengths, self.num_audios, strict=True)
        return [range(length - audio, length) for length, audio in pairs]

    def places(self, in_rows: list[range]) -> Tensor:
        """Turn positions in each row into places (K,) int64 in the flattened rows."""
        parts = [
            np.asarray(places, dtype=np.int64) + row * self.longest
            for row, places in enumerate(in_rows)
        ]
        return torch.from_numpy(np.concatenate(parts))


def join_ids(start: int, ids: np.ndarray, stops: Sequence[int]) -> np.ndarray:
    """Return ids (T,) between a start and its stops, int64."""
    return np.concatenate([[start], ids, stops]).astype(np.int64)


def pad_ids(rows: Sequence[np.ndarray]) -> Tensor:
    """Stack ids (T,) of any length as (B, T) int64, 0 where padded."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return torch.from_numpy(padded)


def arrange(parts: tuple[Tensor, ...], layout: Tensor) -> Tensor:
    """Move vectors to their places in contiguous rows.

    parts: each (B, K, D). layout: (B, T) int64, each position's place in all parts and one zero
    vector after them. Returns (B, T, D).
    """
    batch, _, width = parts[0].shape
    joined = torch.cat([*parts, parts[0].new_zeros(batch, 1, width)], dim=1)
    first = torch.arange(batch, device=layout.device)[:, None] * joined.shape[1]
    places = (layout + first).flatten()
    return joined.flatten(0, 1).index_select(0, places).view(*layout.shape, width)

"""What travels the data road: Clip, Problem, Features, Batch.

Shape letters, used in every docstring: `B` batch, `T_text` tokens, `T_mel` mel frames, `T_wav`
audio samples, `M` mel channels, `D` model width, `K` codebooks, `V` vocabulary. Masks are True
where valid.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Features = dict[str, np.ndarray]
"""What a family needs of one clip: named arrays, written to the cache as they are."""


@dataclass(frozen=True)
class Clip:
    """One audio file with its text, speaker and language.

    `id` is stable for the same audio path and text; `recording` names the source recording, so that
    a split keeps clips of one recording together. A clip may come with arrays computed before
    (name -> .npy file; `lengths` says how much of an array is the clip's); it then needs no audio,
    and `audio_path` is empty where there is none.
    """

    id: str
    audio_path: str
    text: str
    speaker: str
    language: str
    duration_s: float
    sample_rate: int
    split: str
    source: str
    line: int
    recording: str = ""
    arrays: dict[str, str] = field(default_factory=dict, hash=False)
    lengths: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def content_paths(self) -> list[str]:
        """The files that the clip's features are made of."""
        return [self.arrays[name] for name in sorted(self.arrays)] or [self.audio_path]


@dataclass(frozen=True)
class Problem:
    """One row that cannot be used: where it stands, why, and what to do about it."""

    source: str
    line: int
    audio_file: str
    text: str
    kind: str
    reason: str
    remedy: str
    duration_s: float | None = None

    def __str__(self) -> str:
        return f"Line {self.line} of {self.source}: {self.reason} {self.remedy}"


@dataclass
class Batch:
    """Padded features of one micro-step.

    `totals` holds how many frames, tokens and clips are valid in the whole step (all micro-steps,
    all ranks). Families divide their summed losses by `totals`, so that adding up micro-steps and
    ranks gives exactly the loss of one large batch.
    """

    tensors: "dict[str, torch.Tensor]"
    clip_ids: list[str]
    totals: dict[str, float]
    audio_s: float

    def __getitem__(self, name: str) -> "torch.Tensor":
        return self.tensors[name]

    def to(self, device: "torch.device") -> "Batch":
        """Return the batch with its tensors on a device, copied without waiting where possible."""
        moved = {name: value.to(device, non_blocking=True) for name, value in self.tensors.items()}
        return Batch(moved, self.clip_ids, self.totals, self.audio_s)

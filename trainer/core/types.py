"""Define the types of the data path, Clip, Problem, Features and Batch, and finite JSON values.

Shape letters, used in every docstring: `B` batch, `T_text` tokens, `T_mel` mel frames, `T_wav`
audio samples, `M` mel channels, `D` model width, `K` codebooks, `V` vocabulary. Masks are True
where valid.
"""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch  # for type checkers only: reading a list must not wait for torch to load

Features = dict[str, np.ndarray]
"""The named arrays that a model family needs of one clip, cached as they are."""


@dataclass(frozen=True)
class Clip:
    """One audio file with its text, speaker and language.

    `id` is stable for the same audio path and text. `recording` names the source recording, so
    that a split keeps its clips together. A clip may have precomputed arrays (name -> .npy file;
    `lengths` is the valid length of each); it then needs no audio, and `audio_path` may be empty.
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
    # A dict has no hash; without `hash=False` no clip could be a member of a set.
    arrays: dict[str, str] = field(default_factory=dict, hash=False)
    lengths: dict[str, int] = field(default_factory=dict, hash=False)

    @property
    def content_paths(self) -> list[str]:
        """The files that the clip's features are computed from."""
        # Sorted, because clip ids and cache keys are hashes of these paths in this order.
        return [self.arrays[name] for name in sorted(self.arrays)] or [self.audio_path]


@dataclass(frozen=True)
class Problem:
    """One row that cannot be used: its place, the reason and the remedy."""

    source: str
    line: int
    audio_file: str
    text: str
    kind: str
    reason: str
    remedy: str
    duration_s: float | None = None  # None if the audio was not read

    def __str__(self) -> str:
        return f"Line {self.line} of {self.source}: {self.reason} {self.remedy}"


@dataclass
class Batch:
    """Padded features of one micro-batch.

    `totals` counts the valid frames, tokens and clips of the whole step (all micro-batches, all
    ranks). Families divide their summed losses by `totals`, so that the sum over micro-batches
    and ranks is exactly the loss of one large batch.
    """

    tensors: "dict[str, torch.Tensor]"
    clip_ids: list[str]
    totals: dict[str, float]
    audio_s: float

    def __getitem__(self, name: str) -> "torch.Tensor":
        return self.tensors[name]

    def to(self, device: "torch.device") -> "Batch":
        """Return the batch with its tensors on a device; copies are asynchronous if possible."""
        # Copies from pinned memory overlap with computing; from other memory they simply wait.
        moved = {name: value.to(device, non_blocking=True) for name, value in self.tensors.items()}
        return Batch(moved, self.clip_ids, self.totals, self.audio_s)


def finite(value: object) -> Any:
    """Return JSON values with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

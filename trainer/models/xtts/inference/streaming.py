"""Decode audio while codes are being sampled, in pieces that join without seams.

The vocoder is a stack of convolutions, so a sample depends only on a few frames around it. Each
piece is decoded with that many frames of context on both sides, which are then cut off. Frames are
interpolated at the same positions as in the whole sentence, so the pieces join to its audio. There
is no cross-fading, and nothing is decoded again from the start.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.models.xtts.network.sizes import (
    CODE_STRIDE,
    HOP_LENGTH,
    OUTPUT_RATE,
    SAMPLE_RATE,
    VocoderSizes,
)
from trainer.models.xtts.network.vocoder import XttsVocoder

_FIRST_CODES = 8
"""Codes before the first piece; the last five or so are only its context. Chosen by hand."""

_MORE_CODES = 20
"""Codes from one piece to the next: 0.93 s of audio, so context is a third of what is decoded."""


@dataclass(frozen=True)
class Stretch:
    """Linear interpolation in time by a factor, for any part of a sequence that still grows.

    Positions are those of torch's `interpolate` for the whole sequence.
    """

    factor: float

    def length(self, count: int) -> int:
        """Return the number of output frames for `count` input frames."""
        return math.floor(count * self.factor)

    def settled(self, count: int) -> int:
        """Return how many output frames no longer change, whatever follows the first `count`."""
        # Frame i lies at (i + 0.5) / factor - 0.5, which must be before the last known input.
        return max(0, math.floor((count - 0.5) * self.factor - 0.5))

    def needed(self, first: int, last: int, count: int, dtype: torch.dtype) -> tuple[int, int]:
        """Return the range of the `count` input frames that output frames [first, last) need."""
        places = self._places(first, last, count, dtype)
        return int(places[0]), min(int(places[-1]) + 2, count)

    def part(self, frames: Tensor, begin: int, count: int, first: int, last: int) -> Tensor:
        """Return the output frames [first, last) as (B, D, last - first).

        frames: (B, D, T), the input frames from `begin` on, out of `count`.
        """
        places = self._places(first, last, count, frames.dtype).to(frames.device)
        left = places.floor().long()
        right = (left + 1).clamp_max(count - 1)
        weight = places - left
        return (1 - weight) * frames[..., left - begin] + weight * frames[..., right - begin]

    def _places(self, first: int, last: int, count: int, dtype: torch.dtype) -> Tensor:
        """Return the positions (T,) of output frames [first, last) among the input frames."""
        numbers = torch.arange(first, last, dtype=torch.float64)
        if self.length(count) == count:
            return numbers.to(dtype)  # too few frames for even one more; torch copies them
        # As in torch: the scale is rounded to dtype, then follows one fused multiply-add.
        scale = torch.tensor(1 / self.factor, dtype=dtype).double()
        return (scale * (numbers + 0.5) - 0.5).to(dtype).clamp_min(0)


TO_MELS = Stretch(CODE_STRIDE / HOP_LENGTH)
TO_OUTPUT = Stretch(OUTPUT_RATE / SAMPLE_RATE)


def decode_pieces(
    latents: Iterable[Tensor],
    vocoder: XttsVocoder,
    sizes: VocoderSizes,
    speaker: Tensor,
    *,
    first_codes: int = _FIRST_CODES,
    more_codes: int = _MORE_CODES,
) -> Iterator[Tensor]:
    """Yield pieces of audio (T_wav,) at 24,000 Hz, one every few codes.

    latents: (D,) each, one per code, as they are sampled. speaker: (1, S, 1), L2-normalized.
    """
    heard: list[Tensor] = []
    reach, done, wanted = reach_of(sizes), 0, first_codes
    for latent in latents:
        heard.append(latent)
        if len(heard) < wanted:
            continue
        wanted += more_codes
        known = TO_OUTPUT.settled(TO_MELS.settled(len(heard)))
        # The last `reach` frames are only context: frames that follow still change their samples.
        if known - reach > done:
            yield _decode(heard, vocoder, speaker, reach, (done, known - reach, known))
            done = known - reach
    total = TO_OUTPUT.length(TO_MELS.length(len(heard)))
    if total > done:
        yield _decode(heard, vocoder, speaker, reach, (done, total, total))


def reach_of(sizes: VocoderSizes) -> int:
    """Return how many frames before and after a frame affect its samples."""
    widest = max(sizes.block_kernels)
    # Each pair of convolutions reaches half a kernel times the dilation, then half a kernel.
    within_stage = sum((widest // 2) * (dilation + 1) for dilation in sizes.dilations)
    outer = 3  # half of 7, the kernel of the first and the last convolution
    samples = outer
    for rate, kernel in reversed(
        list(zip(sizes.upsample_rates, sizes.upsample_kernels, strict=True))
    ):
        padding = (kernel - rate) // 2
        samples = (samples + within_stage + kernel - 1 - padding) // rate
    return samples + outer


def _decode(
    heard: list[Tensor],
    vocoder: XttsVocoder,
    speaker: Tensor,
    reach: int,
    frames: tuple[int, int, int],
) -> Tensor:
    """Return the audio (T_wav,) of some frames, decoded with context.

    heard: latents (D,). speaker: (1, S, 1). frames: first, last (exclusive), and the end of the
    context.
    """
    first, last, end = frames
    # The start needs no context: there the whole sentence has zero padding too.
    begin = max(0, first - reach)
    wave = vocoder.waveform_decoder(_frames(heard, begin, end), speaker)[0]
    hop = wave.shape[-1] // (end - begin)
    return wave[(first - begin) * hop : (last - begin) * hop]


def _frames(heard: list[Tensor], first: int, last: int) -> Tensor:
    """Return the vocoder's input frames [first, last) as (1, D, T), from latents (D,)."""
    dtype, num_mels = heard[0].dtype, TO_MELS.length(len(heard))
    from_mel, to_mel = TO_OUTPUT.needed(first, last, num_mels, dtype)
    from_code, to_code = TO_MELS.needed(from_mel, to_mel, len(heard), dtype)
    codes = torch.stack(heard[from_code:to_code], dim=-1)[None]
    mels = TO_MELS.part(codes, from_code, len(heard), from_mel, to_mel)  # (1, D, T_mel)
    return TO_OUTPUT.part(mels, from_mel, num_mels, first, last)

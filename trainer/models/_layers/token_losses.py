"""The losses of networks that predict text tokens and audio codes."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.core.types import Batch

IGNORED = -100
"""The target of positions without a loss."""


def weighted_losses(
    model: nn.Module, batch: Batch, logits: tuple[Tensor, Tensor], num_audio: Tensor | float
) -> dict[str, Tensor]:
    """Return the weighted losses of text logits (K, V) and audio logits (K, V).

    They are sums over the targets of the batch, divided by the step's number of text targets and by
    `num_audio`. The weights are the model's `loss_weights`.
    """
    weights: dict[str, float] = model.loss_weights  # type: ignore[assignment]
    text = _cross_entropy(logits[0], batch["text_targets"]) / batch.totals["text"]
    audio = _cross_entropy(logits[1], batch["audio_targets"]) / num_audio
    return {"text_ce": weights["text_ce"] * text, "mel_ce": weights["mel_ce"] * audio}


def count_hits(logits: Tensor, targets: Tensor) -> Tensor:
    """Return as a scalar how many argmaxes of logits (K, V) equal the targets (K,) int64."""
    # Ignored targets are negative, so they never equal a predicted token.
    return (logits.argmax(dim=-1) == targets).sum()


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of logits (K, V), summed over targets (K,) int64 not ignored."""
    # A sum over thousands of targets would lose precision in half precision.
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")

"""The training losses of the GPT of XTTS, and its validation metrics."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.core.types import Batch
from trainer.models.xtts.network.gpt import XttsGpt
from trainer.models.xtts.training.batches import IGNORED

_INPUTS = ("text_ids", "audio_ids", "layout", "text_index", "audio_index", "reference")


def losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return the weighted cross-entropies of text tokens and audio codes.

    Each is an fp32 scalar, summed over targets and divided by the total of the whole step, so that
    the gradients of micro-batches add up. A batch with ignored codes has the same weight as without
    them. The device is not synchronized.
    """
    return _losses(model, batch, *_predict(model, batch))


def validate(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the losses and the top-1 accuracy of the audio codes."""
    text_logits, audio_logits = _predict(model, batch)
    # Ignored targets are negative, so they never equal a predicted code.
    hits = (audio_logits.argmax(dim=-1) == batch["audio_targets"]).sum()
    return _losses(model, batch, text_logits, audio_logits), {
        "audio_top1": hits / _num_audio(batch)
    }


def _losses(
    model: nn.Module, batch: Batch, text_logits: Tensor, audio_logits: Tensor
) -> dict[str, Tensor]:
    """Return the weighted losses of text logits (K, V) and audio logits (K, V)."""
    weights: dict[str, float] = model.loss_weights  # type: ignore[assignment]
    text = _cross_entropy(text_logits, batch["text_targets"]) / batch.totals["text"]
    audio = _cross_entropy(audio_logits, batch["audio_targets"]) / _num_audio(batch)
    return {"text_ce": weights["text_ce"] * text, "mel_ce": weights["mel_ce"] * audio}


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of the trunk; each takes hidden and returns a tensor of its shape."""
    if not isinstance(model, XttsGpt):
        raise TypeError(f"expected XttsGpt, not {type(model).__name__}")
    return list(model.gpt.h)


def _predict(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return text logits (K, V) and audio logits (K, V)."""
    return model(*(batch[name] for name in _INPUTS))


def _num_audio(batch: Batch) -> Tensor:
    """Return the divisor of the audio sums as a scalar: the step's total times a share.

    The share is that of the batch's targets that are not ignored. At least one target is counted,
    because upstream's masking may ignore all of them; the sum is 0 in that case.
    """
    share = batch["num_trained"].sum().clamp(min=1) / len(batch["audio_targets"])
    return batch.totals["audio"] * share


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of logits (K, V), summed over targets (K,) int64 not ignored."""
    # A sum over thousands of targets would lose precision in half precision.
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")

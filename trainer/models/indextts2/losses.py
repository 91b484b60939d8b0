"""What fine-tuning the GPT of IndexTTS-2 minimises, and what validation measures besides."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.data.types import Batch
from trainer.models.indextts2.network import UnifiedVoice

_INPUTS = ("text_ids", "audio_ids", "layout", "text_index", "audio_index")


def predict(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return text logits (K, V) and audio logits (K, V) at the targets of a batch."""
    if "reference" in batch.tensors:
        assert isinstance(model, UnifiedVoice)
        condition, emotion = model.voice(batch["reference"], batch["reference_valid"])
    else:
        condition, emotion = batch["condition"], batch["emotion"]
    return model(*(batch[name] for name in _INPUTS), condition, emotion)


def losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return the weighted cross-entropies of the text and of the audio's codes.

    Sums over targets divided by the whole step's totals, scalars in fp32. Nothing is read back
    from the device.
    """
    return _losses(model, batch, *predict(model, batch))


def validate(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the losses, how often the likeliest token is right, and how open the choice is.

    `audio_entropy` is the mean entropy of the predicted codes in bits: near 0 a network says the
    same code everywhere or has learnt clips by heart, 13 bits are no idea at all.
    """
    text, audio = predict(model, batch)
    scores = torch.log_softmax(audio.float(), dim=-1)
    entropy = -(scores.exp() * scores).sum() / math.log(2)
    return _losses(model, batch, text, audio), {
        "audio_top1": _hits(audio, batch["audio_targets"]) / batch.totals["audio"],
        "text_top1": _hits(text, batch["text_targets"]) / batch.totals["text"],
        "audio_entropy": entropy / batch.totals["audio"],
    }


def _losses(
    model: nn.Module, batch: Batch, text_logits: Tensor, audio_logits: Tensor
) -> dict[str, Tensor]:
    """Return the losses of text logits (K, V) and audio logits (K, V)."""
    weights: dict[str, float] = model.loss_weights  # type: ignore[assignment]
    text = _cross_entropy(text_logits, batch["text_targets"]) / batch.totals["text"]
    audio = _cross_entropy(audio_logits, batch["audio_targets"]) / batch.totals["audio"]
    return {"text_ce": weights["text_ce"] * text, "mel_ce": weights["mel_ce"] * audio}


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the trunk's blocks; each takes (hidden) and returns it."""
    if not isinstance(model, UnifiedVoice):
        raise TypeError(f"expected UnifiedVoice, not {type(model).__name__}")
    return list(model.gpt.h)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum the cross-entropy of logits (K, V) over targets (K,) int64."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(logits, targets, reduction="sum")


def _hits(logits: Tensor, targets: Tensor) -> Tensor:
    """Count where the likeliest of logits (K, V) is the target (K,) int64: a scalar."""
    return (logits.argmax(dim=-1) == targets).sum()

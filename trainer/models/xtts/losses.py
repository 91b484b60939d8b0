"""What fine-tuning the GPT of XTTS minimises, and what validation measures besides."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.data.types import Batch
from trainer.models.xtts.batches import IGNORED
from trainer.models.xtts.network import XttsGpt

_INPUTS = ("text_ids", "audio_ids", "layout", "text_index", "audio_index", "reference")


def losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return the weighted cross-entropies of the text and of the audio's codes.

    Sums over targets divided by the whole step's totals, scalars in fp32. A batch of which codes
    are left out counts as much as without that: the rest stands for them. Nothing is read back from
    the device.
    """
    return _losses(model, batch, *_predict(model, batch))


def validate(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the losses, and the share of audio targets whose likeliest code is the right one."""
    text_logits, audio_logits = _predict(model, batch)
    # An ignored target equals no code, so it is no hit.
    hits = (audio_logits.argmax(dim=-1) == batch["audio_targets"]).sum()
    return _losses(model, batch, text_logits, audio_logits), {
        "audio_top1": hits / _num_audio(batch)
    }


def _losses(
    model: nn.Module, batch: Batch, text_logits: Tensor, audio_logits: Tensor
) -> dict[str, Tensor]:
    """Return the losses of text logits (K, V) and audio logits (K, V)."""
    weights: dict[str, float] = model.loss_weights  # type: ignore[assignment]
    text = _cross_entropy(text_logits, batch["text_targets"]) / batch.totals["text"]
    audio = _cross_entropy(audio_logits, batch["audio_targets"]) / _num_audio(batch)
    return {"text_ce": weights["text_ce"] * text, "mel_ce": weights["mel_ce"] * audio}


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the trunk's blocks; each takes (hidden) and returns it."""
    if not isinstance(model, XttsGpt):
        raise TypeError(f"expected XttsGpt, not {type(model).__name__}")
    return list(model.gpt.h)


def _predict(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return text logits (K, V) and audio logits (K, V)."""
    return model(*(batch[name] for name in _INPUTS))


def _num_audio(batch: Batch) -> Tensor:
    """Return what the audio's sums are divided by, (): the step's targets times this batch's share.

    The share is that of its targets which train; upstream's masking may leave none, and the sum is
    then zero.
    """
    share = batch["num_trained"].sum().clamp(min=1) / len(batch["audio_targets"])
    return batch.totals["audio"] * share


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum the cross-entropy of logits (K, V) over targets (K,) int64 that are not ignored."""
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")

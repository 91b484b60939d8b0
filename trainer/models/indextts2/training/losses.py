"""The training losses of the GPT of IndexTTS-2, and its validation metrics."""

import math

import torch
from torch import Tensor, nn

from trainer.core.types import Batch
from trainer.models._layers.token_losses import count_hits, weighted_losses
from trainer.models.indextts2.network.gpt import UnifiedVoice

_INPUTS = ("text_ids", "audio_ids", "layout", "text_index", "audio_index")


def predict(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return text logits (K, V) and audio logits (K, V) at the target positions of a batch."""
    if "reference" in batch.tensors:
        assert isinstance(model, UnifiedVoice)
        condition, emotion = model.voice(batch["reference"], batch["reference_valid"])
    else:
        # Precomputed voices; the network has no conditioning then.
        condition, emotion = batch["condition"], batch["emotion"]
    return model(*(batch[name] for name in _INPUTS), condition, emotion)


def losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return the weighted cross-entropies of text tokens and audio codes.

    Each is an fp32 scalar, summed over targets and divided by the total of the whole step, so that
    the gradients of micro-batches add up. The device is not synchronized.
    """
    return weighted_losses(model, batch, predict(model, batch), batch.totals["audio"])


def validate(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the losses, the top-1 accuracies and the entropy of the predicted codes.

    `audio_entropy` is a mean in bits. Near 0, the network always predicts the same code or has
    memorized its clips; 13 bits (8192 codes) would be random guessing.
    """
    text, audio = logits = predict(model, batch)
    scores = torch.log_softmax(audio.float(), dim=-1)
    entropy = -(scores.exp() * scores).sum() / math.log(2)
    return weighted_losses(model, batch, logits, batch.totals["audio"]), {
        "audio_top1": count_hits(audio, batch["audio_targets"]) / batch.totals["audio"],
        "text_top1": count_hits(text, batch["text_targets"]) / batch.totals["text"],
        "audio_entropy": entropy / batch.totals["audio"],
    }


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of the trunk; each takes hidden and returns a tensor of its shape."""
    if not isinstance(model, UnifiedVoice):
        raise TypeError(f"expected UnifiedVoice, not {type(model).__name__}")
    return list(model.gpt.h)

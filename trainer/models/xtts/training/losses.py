"""The training losses of the GPT of XTTS, and its validation metrics."""

from torch import Tensor, nn

from trainer.core.types import Batch
from trainer.models._layers.token_losses import count_hits, weighted_losses
from trainer.models.xtts.network.gpt import XttsGpt

_INPUTS = ("text_ids", "audio_ids", "layout", "text_index", "audio_index", "reference")


def losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return the weighted cross-entropies of text tokens and audio codes.

    Each is an fp32 scalar, summed over targets and divided by the total of the whole step, so that
    the gradients of micro-batches add up. A batch with ignored codes has the same weight as without
    them. The device is not synchronized.
    """
    return weighted_losses(model, batch, _predict(model, batch), _num_audio(batch))


def validate(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the losses and the top-1 accuracy of the audio codes."""
    logits, num_audio = _predict(model, batch), _num_audio(batch)
    return weighted_losses(model, batch, logits, num_audio), {
        "audio_top1": count_hits(logits[1], batch["audio_targets"]) / num_audio
    }


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

"""The training losses of FastSpeech 2, and its validation metrics."""

import math

import torch
from torch import Tensor, nn

from trainer.core.types import Batch
from trainer.models.fastspeech2.network import FastSpeech2, Prediction

_TARGETS = ("durations", "pitch", "energy", "mel_mask")


def losses(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Return the weighted losses of a teacher-forced forward pass (Ren et al. 2020, section 2.2).

    These are the L1 error of the mel (before and after the postnet) and the squared errors of log
    duration, pitch and energy. Each is a sum over valid frames or tokens, divided by the total of
    the whole step, so that the gradients of micro-batches add up to that of the full batch.
    """
    return _losses(model, batch, _predict(model, batch))


def validate(model: nn.Module, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the losses, and the mel error in dB and the duration error in frames per token."""
    prediction = _predict(model, batch)
    per_value = batch.totals["frames"] * batch["mel"].shape[2]
    decibels = 20 / math.log(10)  # per unit of the natural logarithm of a magnitude
    frames = torch.exp(prediction.log_duration.float()) - 1  # the network predicts log(frames + 1)
    off = (frames - batch["durations"]).abs() * batch["token_mask"]
    return _losses(model, batch, prediction), {
        "mel_l1_db": decibels * _mel_error(prediction.mel_refined, batch) / per_value,
        "duration_l1_frames": off.sum() / batch.totals["tokens"],
    }


def _losses(model: nn.Module, batch: Batch, prediction: Prediction) -> dict[str, Tensor]:
    weights: dict[str, float] = model.loss_weights  # type: ignore[assignment]
    per_value = batch.totals["frames"] * batch["mel"].shape[2]
    found = {"mel": weights["mel"] * _mel_error(prediction.mel, batch) / per_value}
    # Without a postnet both are the same tensor, whose loss must not count twice.
    if prediction.mel_refined is not prediction.mel:
        refined = _mel_error(prediction.mel_refined, batch)
        found["mel_postnet"] = weights["mel"] * refined / per_value
    wanted = {
        "duration": (prediction.log_duration, torch.log1p(batch["durations"].float())),
        "pitch": (prediction.pitch, batch["pitch"]),
        "energy": (prediction.energy, batch["energy"]),
    }
    for name, (guess, target) in wanted.items():
        # In fp32 under autocast too, because squares of small errors underflow in half precision.
        squares = (guess.float() - target).square() * batch["token_mask"]
        found[name] = weights[name] * squares.sum() / batch.totals["tokens"]
    return found


def _predict(model: nn.Module, batch: Batch) -> Prediction:
    targets = {name: batch[name] for name in _TARGETS}
    return model(batch["tokens"], batch["token_mask"], batch["speaker"], targets)


def _mel_error(mel: Tensor, batch: Batch) -> Tensor:
    """Return the absolute error of a mel (B, T_mel, M), summed over valid frames."""
    return ((mel.float() - batch["mel"]).abs() * batch["mel_mask"][..., None]).sum()


def blocks(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of encoder and decoder; each is called with (hidden, mask)."""
    if not isinstance(model, FastSpeech2):
        raise TypeError(f"expected FastSpeech2, not {type(model).__name__}")
    return [*model.encoder.layer_stack, *model.decoder.layer_stack]

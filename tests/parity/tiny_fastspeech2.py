"""A tiny FastSpeech 2 with weights from a formula, and a batch for it: the same on any machine."""

import torch
from torch import Tensor, nn

from trainer.core.types import Batch
from trainer.models.fastspeech2.network import FastSpeech2, Sizes

SIZES = Sizes(
    "transformer", 32, 2, 2, ffn_width=48, predictor_width=32, num_bins=256, postnet_width=512
)
NUM_SYMBOLS, NUM_SPEAKERS = 361, 3

EXPECTED_LOSSES = {
    "mel": 5.01593447,
    "mel_postnet": 5.0466795,
    "pitch": 2.04805875,
    "energy": 0.622017026,
    "duration": 2.0425756,
}
"""The original's losses for this network and batch, printed by

    PYTHONPATH=. python tests/parity/compare_fastspeech2.py --original path/to/FastSpeech2
"""


def tiny_network() -> FastSpeech2:
    """Return the network in evaluation mode."""
    network = FastSpeech2(SIZES, NUM_SYMBOLS, NUM_SPEAKERS)
    fill_weights(network)
    # A free-running pass then speaks dozens of frames, not two.
    network.state_dict()["variance_adaptor.duration_predictor.linear_layer.bias"].fill_(2.0)
    return network.eval()


def fill_weights(network: nn.Module, size: float = 0.2) -> None:
    """Set every weight by a formula of its place; variances stay positive, bins ascending."""
    state = network.state_dict()
    for number, name in enumerate(sorted(state)):
        value = state[name]
        if name.endswith(("_bins", "num_batches_tracked", "position_enc")):
            continue
        wave = torch.sin(torch.arange(value.numel(), dtype=torch.float64) * 0.37 + number)
        value.copy_((wave * size).view(value.shape))
        if name.endswith(("running_var", "norm.weight", "norm_1.weight", "norm_2.weight")):
            value.copy_(1 + value.abs())


def tiny_batch(num_clips: int = 3, num_tokens: int = 7, num_frames: int = 21) -> Batch:
    """Return clips of equal length, so that no padding takes part."""
    tokens = (torch.arange(num_clips * num_tokens) * 53 % 360 + 1).view(num_clips, num_tokens)
    durations = torch.ones_like(tokens)
    durations[:, 2] = num_frames - num_tokens - 3
    durations[:, 4] = 5
    # The rest of the frames: one for each other token.
    durations[:, 6] += num_frames - durations.sum(dim=1)
    curve = torch.sin(torch.arange(num_clips * num_tokens).float() * 1.3).view(tokens.shape)
    mel = torch.cos(torch.arange(num_clips * num_frames * 80).float() * 0.11) * 3 - 5
    tensors: dict[str, Tensor] = {
        "tokens": tokens,
        "token_mask": torch.ones_like(tokens, dtype=torch.bool),
        "durations": durations,
        "pitch": curve * 2,
        "energy": curve.flip(1),
        "mel": mel.view(num_clips, num_frames, 80),
        "mel_mask": torch.ones(num_clips, num_frames, dtype=torch.bool),
        "speaker": torch.arange(num_clips) % NUM_SPEAKERS,
    }
    totals = {"frames": float(num_clips * num_frames), "tokens": float(num_clips * num_tokens)}
    return Batch(tensors, [str(clip) for clip in range(num_clips)], totals, 1.0)

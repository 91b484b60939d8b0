"""The HiFi-GAN generator (Kong, Kim & Bae 2020, arXiv 2010.05646), for inference only.

The input is a mel or any other sequence of frames. XTTS feeds it GPT hidden states and adds a
speaker embedding at every scale, which `speaker_width` turns on.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SLOPE = 0.1  # of all leaky ReLUs but the last, as in the authors' code


@dataclass(frozen=True)
class HifiganSettings:
    """Shapes of the generator; the defaults are the published V1 for 22,050 Hz.

    A `speaker_width` of 0 means no speaker conditioning.
    """

    n_mels: int = 80
    width: int = 512
    upsample_rates: tuple[int, ...] = (8, 8, 2, 2)
    upsample_kernels: tuple[int, ...] = (16, 16, 4, 4)
    block_kernels: tuple[int, ...] = (3, 7, 11)
    dilations: tuple[int, ...] = (1, 3, 5)
    speaker_width: int = 0
    has_post_bias: bool = True


class Hifigan(nn.Module):
    """Turn log-mel frames into audio; keys are the published ones with weight norm folded in."""

    def __init__(self, settings: HifiganSettings) -> None:
        super().__init__()
        width = settings.width
        self.num_kernels = len(settings.block_kernels)
        self.conv_pre = nn.Conv1d(settings.n_mels, width, 7, padding=3)
        self.ups = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        if settings.speaker_width:
            self.cond_layer = nn.Conv1d(settings.speaker_width, width, 1)
            self.conds = nn.ModuleList()
        for rate, kernel in zip(settings.upsample_rates, settings.upsample_kernels, strict=True):
            # With this padding, a stage makes exactly `rate` samples of each input frame.
            padding = (kernel - rate) // 2
            self.ups.append(nn.ConvTranspose1d(width, width // 2, kernel, rate, padding))
            width //= 2
            if settings.speaker_width:
                self.conds.append(nn.Conv1d(settings.speaker_width, width, 1))
            for size in settings.block_kernels:
                self.resblocks.append(_ResidualBlock(width, size, settings.dilations))
        self.conv_post = nn.Conv1d(width, 1, 7, padding=3, bias=settings.has_post_bias)

    def forward(self, mel: Tensor, speaker: Tensor | None = None) -> Tensor:
        """Return audio (B, T_wav) in [-1, 1].

        mel: (B, M, T_mel) natural log. speaker: (B, D, 1), required if `speaker_width` is set.
        """
        values = self.conv_pre(mel)  # (B, D, T_mel)
        if speaker is not None:
            values = values + self.cond_layer(speaker)
        for index, upsample in enumerate(self.ups):
            values = upsample(F.leaky_relu(values, _SLOPE))  # (B, D / 2, T * rate)
            if speaker is not None:
                values = values + self.conds[index](speaker)
            first = index * self.num_kernels
            group = self.resblocks[first : first + self.num_kernels]
            # The paper sums the blocks (multi-receptive field fusion); the published code averages.
            values = torch.stack([block(values) for block in group]).mean(dim=0)
        # The published network uses the default slope of 0.01 here, not 0.1.
        return torch.tanh(self.conv_post(F.leaky_relu(values))).squeeze(1)


class _ResidualBlock(nn.Module):
    def __init__(self, width: int, kernel: int, dilations: tuple[int, ...]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            nn.Conv1d(width, width, kernel, dilation=dilation, padding=(kernel - 1) * dilation // 2)
            for dilation in dilations
        )
        self.convs2 = nn.ModuleList(
            nn.Conv1d(width, width, kernel, padding=kernel // 2) for _ in dilations
        )

    def forward(self, values: Tensor) -> Tensor:
        """values: (B, D, T). Returns the same shape."""
        for first, second in zip(self.convs1, self.convs2, strict=True):
            change = first(F.leaky_relu(values, _SLOPE))
            values = values + second(F.leaky_relu(change, _SLOPE))
        return values


def fold_weight_norm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Replace each pair `weight_g`, `weight_v` with the weight it encodes (Salimans 2016).

    An incomplete pair is left alone, so that strict loading reports it.
    """
    folded = {}
    for name, value in state.items():
        # torch.nn.utils.parametrizations.weight_norm uses these names for the same pair.
        name = name.replace("parametrizations.weight.original0", "weight_g")
        name = name.replace("parametrizations.weight.original1", "weight_v")
        folded[name] = value
    pairs = [name for name in folded if name.endswith("weight_v") and name[:-1] + "g" in folded]
    for name in pairs:
        direction, size = folded.pop(name), folded.pop(name[:-1] + "g")
        # weight_norm keeps one length for each slice of the first dimension, its default.
        length = direction.flatten(1).norm(dim=1).view(-1, *[1] * (direction.dim() - 1))
        folded[name[:-2]] = direction * (size / length)
    return folded

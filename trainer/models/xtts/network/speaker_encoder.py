"""XTTS's speaker encoder: audio at 16,000 Hz to a vector that identifies the voice.

It is the H/ASP network of Heo et al. 2020 (arXiv 2009.14153): a residual network with squeeze and
excitation (Hu et al. 2018) over log-mels, and attentive statistics pooling (Okabe et al. 2018).
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.core.errors import DataError
from trainer.models.xtts.network.sizes import SPEAKER_RATE, SpeakerSizes
from trainer.models.xtts.network.strict_loading import (
    below,
    count_modules,
    draw_weight,
    load_strict,
    shape_of,
)

_WHAT = "The speaker encoder"
_PREFIX = "speaker_encoder."
# All as in coqui-tts; sizes in samples at 16,000 Hz.
_FFT = 512
_WINDOW = 400
_HOP = 160
_PREEMPHASIS = 0.97
_ATTENTION_WIDTH = 128
_SE_REDUCTION = 8
# Three of the four groups of blocks halve the mel bands.
_BAND_REDUCTION = 8


class SpeakerEncoder(nn.Module):
    """Embed a speaker's audio; keys are the published ones under `speaker_encoder.`."""

    def __init__(self, sizes: SpeakerSizes) -> None:
        super().__init__()
        first = sizes.widths[0]
        self.torch_spec = nn.Sequential(_PreEmphasis(), _MelSpectrogram(sizes.n_mels))
        self.instancenorm = nn.InstanceNorm1d(sizes.n_mels)
        self.conv1 = nn.Conv2d(1, first, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(first)
        inputs = (first, *sizes.widths)
        groups = [
            _make_group(inputs[index], width, count, stride=2 if index else 1)
            for index, (width, count) in enumerate(zip(sizes.widths, sizes.blocks, strict=True))
        ]
        self.layer1, self.layer2, self.layer3, self.layer4 = groups
        pooled = sizes.widths[-1] * (sizes.n_mels // _BAND_REDUCTION)
        self.attention = nn.Sequential(
            nn.Conv1d(pooled, _ATTENTION_WIDTH, 1),
            nn.ReLU(),
            nn.BatchNorm1d(_ATTENTION_WIDTH),
            nn.Conv1d(_ATTENTION_WIDTH, pooled, 1),
            nn.Softmax(dim=2),
        )
        self.fc = nn.Linear(2 * pooled, sizes.embedding)

    def forward(self, wave: Tensor) -> Tensor:
        """Return embeddings (B, D) of unit length for audio (B, T_wav) at 16,000 Hz.

        Raises:
            DataError: the audio is shorter than half an FFT.
        """
        if wave.shape[-1] <= _FFT // 2:
            raise DataError(
                f"A clip of {wave.shape[-1]} samples is too short to identify a voice; expected "
                f"more than {_FFT // 2} samples at {SPEAKER_RATE} Hz. Use longer audio."
            )
        mel = (self.torch_spec(wave.float()) + 1e-6).log()  # (B, M, T_mel)
        values = self.bn1(F.relu(self.conv1(self.instancenorm(mel)[:, None])))
        for group in (self.layer1, self.layer2, self.layer3, self.layer4):
            values = group(values)
        return F.normalize(self.fc(self._pool(values.flatten(1, 2))), dim=1)

    def _pool(self, values: Tensor) -> Tensor:
        """values: (B, D, T). Returns weighted means and standard deviations, (B, 2 * D)."""
        weights = self.attention(values)
        mean = (values * weights).sum(2)
        variance = (values.square() * weights).sum(2) - mean.square()
        return torch.cat([mean, variance.clamp(min=1e-5).sqrt()], 1)


def _make_group(inputs: int, width: int, count: int, stride: int) -> nn.Sequential:
    blocks = [_SqueezeBlock(inputs if index == 0 else width, width, 1) for index in range(count)]
    blocks[0] = _SqueezeBlock(inputs, width, stride)
    return nn.Sequential(*blocks)


class _SqueezeBlock(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.se = _SqueezeExcitation(width)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != width:
            convolution = nn.Conv2d(inputs, width, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(width))

    def forward(self, values: Tensor) -> Tensor:
        """values: (B, D, M, T). Returns (B, D', M', T'), halved if the stride is 2."""
        # The published block normalizes after the first activation, not before it.
        change = self.bn1(F.relu(self.conv1(values)))
        change = self.se(self.bn2(self.conv2(change)))
        kept = values if self.downsample is None else self.downsample(values)
        return F.relu(change + kept)


class _SqueezeExcitation(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        # The published widths are multiples of the reduction; smaller ones keep one channel.
        inner = max(width // _SE_REDUCTION, 1)
        self.fc = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width), nn.Sigmoid()
        )

    def forward(self, values: Tensor) -> Tensor:
        """values: (B, D, M, T). Returns the same shape."""
        return values * self.fc(values.mean((2, 3)))[:, :, None, None]


class _PreEmphasis(nn.Module):
    filter: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filter", torch.tensor([[[-_PREEMPHASIS, 1.0]]]))

    def forward(self, wave: Tensor) -> Tensor:
        """wave: (B, T_wav). Returns the same shape."""
        return F.conv1d(F.pad(wave[:, None], (1, 0), "reflect"), self.filter)[:, 0]


class _MelSpectrogram(nn.Module):
    """Compute the power in mel bands; window and filters are part of the published weights."""

    def __init__(self, n_mels: int) -> None:
        super().__init__()
        self.spectrogram, self.mel_scale = nn.Module(), nn.Module()
        self.spectrogram.register_buffer("window", torch.hamming_window(_WINDOW))
        self.mel_scale.register_buffer("fb", _mel_filters(n_mels))

    def forward(self, wave: Tensor) -> Tensor:
        """wave: (B, T_wav). Returns (B, M, T_mel)."""
        window = self.spectrogram.get_buffer("window")
        spectrum = torch.stft(wave, _FFT, _HOP, len(window), window, return_complex=True)
        power = spectrum.real.square() + spectrum.imag.square()
        return self.mel_scale.get_buffer("fb").t() @ power


def _mel_filters(n_mels: int) -> Tensor:
    """Return triangular filters (n_fft // 2 + 1, M) of height 1 on the HTK scale up to 8000 Hz."""
    # Imported here because the import takes a second, and only audio needs it.
    from torchaudio.functional import melscale_fbanks

    # It checks for empty bands, which is impossible on the meta device.
    with torch.device("cpu"):
        return melscale_fbanks(_FFT // 2 + 1, 0.0, SPEAKER_RATE / 2, n_mels, SPEAKER_RATE)


def speaker_sizes(state: dict[str, Tensor]) -> SpeakerSizes:
    """Derive the sizes from the shapes of published weights under `hifigan_decoder.` or deeper.

    Raises:
        CheckpointError: a weight that determines a size is missing.
    """
    state = below(state, _PREFIX)
    groups = [f"layer{number}" for number in range(1, 5)]
    return SpeakerSizes(
        blocks=tuple(count_modules(state, group + ".{}.") for group in groups),
        widths=tuple(shape_of(state, f"{group}.0.bn1.weight", 1, _WHAT)[0] for group in groups),
        n_mels=shape_of(state, "torch_spec.1.mel_scale.fb", 2, _WHAT)[1],
        embedding=shape_of(state, "fc.weight", 2, _WHAT)[0],
    )


def load_speaker_encoder(state: dict[str, Tensor], sizes: SpeakerSizes) -> SpeakerEncoder:
    """Make the encoder from published weights under `hifigan_decoder.`; ignore other networks.

    Raises:
        CheckpointError: weights are missing, unexpected or of another shape.
    """
    return load_strict(lambda: SpeakerEncoder(sizes), below(state, _PREFIX), _WHAT)


def random_speaker_state(sizes: SpeakerSizes, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw random weights in the published layout under `hifigan_decoder.`.

    Filters with zero mean respond to differences between bands and moments, not to what all speech
    has in common. Otherwise, all voices would have nearly the same embedding.
    """
    state = {}
    for name, value in SpeakerEncoder(sizes).state_dict().items():
        if name.endswith("weight") and value.dim() > 1:
            weight = draw_weight(value.shape, generator)
            value = weight - weight.mean(tuple(range(1, value.dim())), keepdim=True)
        # The front end and the normalization layers keep their initial values.
        state[_PREFIX + name] = torch.zeros_like(value) if name.endswith("bias") else value
    return state

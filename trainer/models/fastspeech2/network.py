"""The FastSpeech 2 network: encoder, variance adaptor, decoder (Ren et al. 2020, arXiv 2006.04558).

The standard size has the module names of ming024's implementation, so its published state_dicts
load unchanged. The small size trains on a CPU: it replaces attention with convolutional blocks (Liu
et al. 2022, "A ConvNet for the 2020s") and quantized pitch with continuous pitch.

Padding is masked everywhere, so a clip's result does not depend on what it is batched with. In the
published code, padding leaks into the last token and the last frames of shorter clips.
"""

import math
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models._json import Json
from trainer.models._layers.attention import SelfAttention
from trainer.models._layers.dropout import Dropout

MAX_TABLE_POSITIONS = 1000
"""Length of the stored position table, as published; longer sequences compute their own."""


@dataclass(frozen=True)
class Sizes:
    """Everything that determines a network's shapes except the number of symbols and speakers."""

    blocks: str
    width: int
    encoder_blocks: int
    decoder_blocks: int
    num_heads: int = 2
    ffn_width: int = 1024
    ffn_kernel: int = 9
    conv_kernel: int = 7
    conv_expansion: int = 3
    predictor_width: int = 256
    num_bins: int = 0
    """Bins of pitch and energy; 0 embeds continuous values, and stops the predictors' gradients
    from reaching the encoder."""
    postnet_width: int = 0
    n_mels: int = 80
    dropout: float = 0.2
    predictor_dropout: float = 0.5

    def to_json(self) -> Json:
        """Return the sizes as plain JSON values."""
        return asdict(self)


# The sizes of ming024/FastSpeech2. Those of the small network were chosen by hand: 1 M parameters
# learn a voice from minutes of speech in minutes on a CPU, with less dropout.
_STANDARD = Sizes("transformer", 256, 4, 6, num_bins=256, postnet_width=512)
_SMALL = Sizes(
    "convolution", 128, 3, 4, ffn_width=512, predictor_width=128, dropout=0.05,
    predictor_dropout=0.2,
)  # fmt: skip


def sizes_of(size: str, blocks: str, dropout: float | None) -> Sizes:
    """Return the sizes that the options `size`, `blocks` and `dropout` select."""
    sizes = _SMALL if size == "small" else _STANDARD
    if blocks != "auto":
        sizes = replace(sizes, blocks=blocks)
    return sizes if dropout is None else replace(sizes, dropout=dropout)


@dataclass
class Prediction:
    """The result of a forward pass.

    mel, mel_refined: (B, T_mel, M) natural log; the same tensor if there is no postnet.
    log_duration: (B, T_text), log of frames + 1. pitch, energy: (B, T_text), normalized units.
    durations: (B, T_text) int64, frames. mel_mask: (B, T_mel) bool.
    """

    mel: Tensor
    mel_refined: Tensor
    log_duration: Tensor
    pitch: Tensor
    energy: Tensor
    durations: Tensor
    mel_mask: Tensor


class FastSpeech2(nn.Module):
    """Predict a mel from tokens; teacher-forced if durations, pitch and energy are given."""

    def __init__(self, sizes: Sizes, num_symbols: int, num_speakers: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.encoder = Encoder(sizes, num_symbols)
        self.variance_adaptor = VarianceAdaptor(sizes)
        self.decoder = Decoder(sizes)
        self.mel_linear = nn.Linear(sizes.width, sizes.n_mels)
        self.postnet = Postnet(sizes) if sizes.postnet_width else None
        self.speaker_emb = nn.Embedding(num_speakers, sizes.width) if num_speakers > 1 else None
        self.loss_weights = {"mel": 1.0, "duration": 1.0, "pitch": 1.0, "energy": 1.0}

    def forward(
        self,
        tokens: Tensor,
        token_mask: Tensor,
        speaker: Tensor,
        targets: dict[str, Tensor] | None = None,
        pace: float = 1.0,
    ) -> Prediction:
        """Predict the mels of a batch of token sequences.

        tokens: (B, T_text) int64, 0 is padding. token_mask: (B, T_text) bool. speaker: (B,) int64.
        targets: durations (B, T_text) int64 frames, pitch and energy (B, T_text), mel_mask
        (B, T_mel) bool; None for inference. pace: factor applied to predicted durations.
        """
        hidden = self.encoder(tokens, token_mask)
        if self.speaker_emb is not None:
            hidden = hidden + self.speaker_emb(speaker)[:, None] * token_mask[..., None]
        found = self.variance_adaptor(hidden, token_mask, targets, pace)
        mel = self.mel_linear(self.decoder(found["frames"], found["mel_mask"]))
        refined = mel if self.postnet is None else mel + self.postnet(mel, found["mel_mask"])
        return Prediction(
            mel, refined, found["log_duration"], found["pitch"], found["energy"],
            found["durations"], found["mel_mask"],
        )  # fmt: skip


class Encoder(nn.Module):
    """Turn tokens into hidden vectors."""

    def __init__(self, sizes: Sizes, num_symbols: int) -> None:
        super().__init__()
        self.src_word_emb = nn.Embedding(num_symbols, sizes.width, padding_idx=0)
        self.layer_stack = _blocks(sizes, sizes.encoder_blocks)
        _add_positions(self, sizes)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """tokens: (B, T_text) int64. mask: (B, T_text) bool. Returns (B, T_text, D)."""
        hidden = _with_positions(self, self.src_word_emb(tokens))
        for block in self.layer_stack:
            hidden = block(hidden, mask)
        return hidden


class Decoder(nn.Module):
    """Process the hidden vectors of frames."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.layer_stack = _blocks(sizes, sizes.decoder_blocks)
        _add_positions(self, sizes)

    def forward(self, frames: Tensor, mask: Tensor) -> Tensor:
        """frames: (B, T_mel, D). mask: (B, T_mel) bool. Returns (B, T_mel, D)."""
        frames = _with_positions(self, frames)
        for block in self.layer_stack:
            frames = block(frames, mask)
        return frames


class VarianceAdaptor(nn.Module):
    """Add pitch and energy to the tokens, then repeat each token for its frames."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.is_quantised = sizes.num_bins > 0
        self.duration_predictor = Predictor(sizes)
        self.pitch_predictor = Predictor(sizes)
        self.energy_predictor = Predictor(sizes)
        if self.is_quantised:
            # Placeholders; a checkpoint or the corpus provides the real bins.
            bins = torch.linspace(-3, 3, sizes.num_bins - 1)
            self.register_buffer("pitch_bins", bins)
            self.register_buffer("energy_bins", bins.clone())
            self.pitch_embedding = nn.Embedding(sizes.num_bins, sizes.width)
            self.energy_embedding = nn.Embedding(sizes.num_bins, sizes.width)
        else:
            self.pitch_embedding = nn.Linear(1, sizes.width)
            self.energy_embedding = nn.Linear(1, sizes.width)
            self.place_embedding = nn.Linear(3, sizes.width)

    def forward(
        self, hidden: Tensor, mask: Tensor, targets: dict[str, Tensor] | None, pace: float
    ) -> dict[str, Tensor]:
        """Return the predictions and the hidden vectors of the frames.

        hidden: (B, T_text, D). mask: (B, T_text) bool. See FastSpeech2.forward for the rest.
        """
        # Chosen by hand: in the small network, only the mel losses train the encoder.
        seen = hidden if self.is_quantised else hidden.detach()
        log_duration = self.duration_predictor(seen, mask)
        pitch = self.pitch_predictor(seen, mask)
        hidden = hidden + self._embed("pitch", targets["pitch"] if targets else pitch, mask)
        # The published network adds the pitch before it predicts energy.
        energy = self.energy_predictor(hidden if self.is_quantised else seen, mask)
        hidden = hidden + self._embed("energy", targets["energy"] if targets else energy, mask)
        if targets:
            durations, mel_mask = targets["durations"], targets["mel_mask"]
        else:
            durations = round_durations(log_duration, mask, pace)
            mel_mask = length_mask(durations.sum(dim=1))
        frames = self._spread(hidden, durations, mel_mask)
        return {
            "frames": frames, "log_duration": log_duration, "pitch": pitch, "energy": energy,
            "durations": durations, "mel_mask": mel_mask,
        }  # fmt: skip

    def _embed(self, name: str, values: Tensor, mask: Tensor) -> Tensor:
        """Embed one value per token (B, T_text) as (B, T_text, D), 0 where padded."""
        embedding = self.get_submodule(f"{name}_embedding")
        if self.is_quantised:
            bins = torch.bucketize(values.float(), self.get_buffer(f"{name}_bins"))
            return embedding(bins) * mask[..., None]
        return embedding(values[..., None]) * mask[..., None]

    def _spread(self, hidden: Tensor, durations: Tensor, mel_mask: Tensor) -> Tensor:
        """Repeat each token's vector (B, T_text, D) for each of its frames: (B, T_mel, D)."""
        ends = durations.cumsum(dim=1)  # (B, T_text)
        time = torch.arange(mel_mask.shape[1], device=hidden.device)
        # right: a frame belongs to the first token that ends after it, so tokens of 0 frames own
        # none.
        owner = torch.searchsorted(ends, time.expand(len(ends), -1).contiguous(), right=True)
        owner = owner.clamp(max=hidden.shape[1] - 1)  # (B, T_mel)
        frames = hidden.gather(1, owner[..., None].expand(-1, -1, hidden.shape[2]))
        if not self.is_quantised:
            frames = frames + self.place_embedding(_places(time, owner, ends, durations))
        return frames * mel_mask[..., None]


class Predictor(nn.Module):
    """Predict a number per token: two convolutions, each with ReLU, LayerNorm and dropout."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.predictor_width
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        for index, inputs in ((1, sizes.width), (2, width)):
            layers[f"conv1d_{index}"] = _NamedConv(inputs, width, 3)
            layers[f"relu_{index}"] = nn.ReLU()
            layers[f"layer_norm_{index}"] = nn.LayerNorm(width)
            layers[f"dropout_{index}"] = Dropout(sizes.predictor_dropout)
        self.conv_layer = nn.Sequential(layers)
        self.linear_layer = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden: (B, T_text, D). mask: (B, T_text) bool. Returns (B, T_text), 0 where padded."""
        # A convolution has to see zeros where there is padding, or the result would depend on it.
        for layer in self.conv_layer:
            if isinstance(layer, _NamedConv):
                hidden = hidden * mask[..., None]
            hidden = layer(hidden)
        return self.linear_layer(hidden).squeeze(-1).masked_fill(~mask, 0.0)


class Postnet(nn.Module):
    """Refine the mel with five convolutions (Tacotron 2, Shen et al. 2018)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        widths = [sizes.n_mels] + [sizes.postnet_width] * 4 + [sizes.n_mels]
        self.convolutions = nn.ModuleList(
            nn.Sequential(
                _NamedConv(inputs, outputs, 5, has_time_last=True), nn.BatchNorm1d(outputs)
            )
            for inputs, outputs in zip(widths[:-1], widths[1:], strict=True)
        )
        self.dropout = Dropout(0.5)  # as in Tacotron 2

    def forward(self, mel: Tensor, mask: Tensor) -> Tensor:
        """mel: (B, T_mel, M). mask: (B, T_mel) bool. Returns the correction (B, T_mel, M)."""
        values = mel.transpose(1, 2)  # (B, M, T_mel)
        for layer in self.convolutions[:-1]:
            values = self.dropout(torch.tanh(layer(values * mask[:, None])))
        values = self.convolutions[-1](values * mask[:, None])
        return self.dropout(values).transpose(1, 2)


class TransformerBlock(nn.Module):
    """Attention and a convolutional feed-forward layer, post-norm (the FFT block of the paper)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.slf_attn = _Attention(sizes)
        self.pos_ffn = _FeedForward(sizes)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden: (B, T, D). mask: (B, T) bool. Returns (B, T, D), 0 where padded."""
        # Attention writes to padding too, which the convolution in pos_ffn would spread.
        hidden = self.slf_attn(hidden, mask).masked_fill(~mask[..., None], 0)
        return self.pos_ffn(hidden).masked_fill(~mask[..., None], 0)


class ConvolutionBlock(nn.Module):
    """A ConvNeXt block: depthwise convolution, LayerNorm, and an expanding GELU layer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, kernel = sizes.width, sizes.conv_kernel
        bound = 1 / math.sqrt(kernel)  # what nn.Conv1d uses for a depthwise kernel
        self.depthwise_weight = nn.Parameter(torch.empty(kernel, width).uniform_(-bound, bound))
        self.depthwise_bias = nn.Parameter(torch.zeros(width))
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, sizes.conv_expansion * width)
        self.narrow = nn.Linear(sizes.conv_expansion * width, width)
        self.dropout = Dropout(sizes.dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden: (B, T, D). mask: (B, T) bool. Returns (B, T, D), 0 where padded."""
        mixed = depthwise_conv(hidden, self.depthwise_weight, self.depthwise_bias)
        mixed = self.narrow(F.gelu(self.widen(self.norm(mixed))))
        return (hidden + self.dropout(mixed)) * mask[..., None]


def depthwise_conv(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolve each channel of (B, T, D) with its own kernel, weight (K, D), bias (D,).

    On a CPU, PyTorch's grouped convolution takes five times as long as adding shifted copies.
    """
    if hidden.device.type == "cpu":
        return _ShiftedSum.apply(hidden, weight, bias)  # type: ignore[return-value]
    kernel = weight.t()[:, None]  # (D, 1, K)
    padding = weight.shape[0] // 2
    return F.conv1d(
        hidden.transpose(1, 2), kernel, bias, padding=padding, groups=len(kernel)
    ).transpose(1, 2)


def length_mask(lengths: Tensor, longest: int | None = None) -> Tensor:
    """Turn lengths (B,) int64 into a bool mask (B, T) that is True where valid."""
    longest = int(lengths.max()) if longest is None else longest
    return torch.arange(longest, device=lengths.device)[None] < lengths[:, None]


def round_durations(log_duration: Tensor, mask: Tensor, pace: float) -> Tensor:
    """Turn predicted log(frames + 1) (B, T_text) into frames, at least one per clip.

    log_duration: (B, T_text). mask: (B, T_text) bool. Returns (B, T_text) int64.
    """
    # An untrained network may predict anything; 500 frames (5.8 s) per token bound its memory.
    frames = torch.round((torch.exp(log_duration.float()) - 1) * pace).clamp(min=0, max=500)
    frames = frames.long() * mask
    frames[:, 0] += (frames.sum(dim=1) == 0).long()
    return frames


class _ShiftedSum(torch.autograd.Function):
    """Depthwise convolution as a sum of shifted views; only the padded input is saved."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """hidden: (B, T, D). weight: (K, D). bias: (D,). Returns (B, T, D)."""
        length, reach = hidden.shape[1], weight.shape[0] // 2
        padded = F.pad(hidden, (0, 0, reach, reach))
        ctx.save_for_backward(padded, weight)
        taps = weight.to(hidden.dtype)
        total = torch.addcmul(bias.to(hidden.dtype), padded[:, :length], taps[0])
        for tap in range(1, len(taps)):
            total.addcmul_(padded[:, tap : tap + length], taps[tap])
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of hidden (B, T, D), weight (K, D) and bias (D,)."""
        (gradient,) = gradients
        padded, weight = ctx.saved_tensors
        length, reach = gradient.shape[1], weight.shape[0] // 2
        of_padded = torch.zeros_like(padded)
        of_weight = torch.empty_like(weight)
        taps = weight.to(gradient.dtype)
        for tap in range(len(taps)):
            of_padded[:, tap : tap + length].addcmul_(gradient, taps[tap])
            of_weight[tap] = (gradient * padded[:, tap : tap + length]).sum((0, 1))
        return (
            of_padded[:, reach : reach + length],
            of_weight,
            gradient.sum((0, 1)).to(weight.dtype),
        )


class _Attention(SelfAttention):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes.num_heads)
        width = sizes.width
        self.w_qs = nn.Linear(width, width)
        self.w_ks = nn.Linear(width, width)
        self.w_vs = nn.Linear(width, width)
        self.fc = nn.Linear(width, width)
        self.layer_norm = nn.LayerNorm(width)
        self.dropout = Dropout(sizes.dropout)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """hidden: (B, T, D). mask: (B, T) bool. Returns (B, T, D)."""
        query, key, value = (
            self.split_heads(project(hidden)) for project in (self.w_qs, self.w_ks, self.w_vs)
        )
        mixed = self.attend(query, key, value, mask[:, None, None])
        return self.layer_norm(self.dropout(self.fc(mixed)) + hidden)


class _FeedForward(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        kernel = sizes.ffn_kernel
        self.w_1 = nn.Conv1d(sizes.width, sizes.ffn_width, kernel, padding=kernel // 2)
        self.w_2 = nn.Conv1d(sizes.ffn_width, sizes.width, 1)
        self.layer_norm = nn.LayerNorm(sizes.width)
        self.dropout = Dropout(sizes.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (B, T, D). Returns (B, T, D)."""
        values = self.w_2(F.relu(self.w_1(hidden.transpose(1, 2)))).transpose(1, 2)
        return self.layer_norm(self.dropout(values) + hidden)


class _NamedConv(nn.Module):
    """A 1-d convolution with the published key `conv`; (B, T, D) unless time is last."""

    def __init__(self, inputs: int, outputs: int, kernel: int, has_time_last: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, padding=kernel // 2)
        self.has_time_last = has_time_last

    def forward(self, values: Tensor) -> Tensor:
        """values: (B, T, D), or (B, D, T) if time is last. Returns the same layout."""
        if self.has_time_last:
            return self.conv(values)
        return self.conv(values.transpose(1, 2)).transpose(1, 2)


def _blocks(sizes: Sizes, count: int) -> nn.ModuleList:
    kind = TransformerBlock if sizes.blocks == "transformer" else ConvolutionBlock
    return nn.ModuleList(kind(sizes) for _ in range(count))


def _add_positions(module: nn.Module, sizes: Sizes) -> None:
    table = None
    if sizes.blocks == "transformer":
        table = _sinusoids(MAX_TABLE_POSITIONS + 1, sizes.width)[None]
    module.register_buffer("position_enc", table)


def _with_positions(module: nn.Module, hidden: Tensor) -> Tensor:
    """Add position vectors to (B, T, D); stacks of convolutions need none."""
    table = module.position_enc
    if not isinstance(table, Tensor):
        return hidden
    length = hidden.shape[1]
    if length > MAX_TABLE_POSITIONS:
        table = _sinusoids(length, hidden.shape[2])[None].to(hidden)
    return hidden + table[:, :length]


def _sinusoids(count: int, width: int) -> Tensor:
    """Return the position table (count, D) of Vaswani et al. 2017, section 3.5."""
    channel = torch.arange(width, dtype=torch.float64) // 2 * 2
    angle = torch.arange(count, dtype=torch.float64)[:, None] / 10000 ** (channel / width)
    table = torch.where(torch.arange(width) % 2 == 0, torch.sin(angle), torch.cos(angle))
    return table.float()


def _places(time: Tensor, owner: Tensor, ends: Tensor, durations: Tensor) -> Tensor:
    """Return where each frame lies within its token, (B, T_mel, 3).

    The three values are the share of the token that has passed, and the tens of frames since its
    start and until its end. time: (T_mel,). owner: (B, T_mel), the token of each frame. ends,
    durations: (B, T_text) frames.
    """
    # Tens of frames, limited to 5, are of similar size as the share; chosen by hand.
    length = durations.gather(1, owner).clamp(min=1)
    left = (ends.gather(1, owner) - time - 0.5).clamp(min=0)
    share = 1 - left / length
    return torch.stack([share, (length - left) / 10, left / 10], dim=2).clamp(-1, 5)

"""XTTS's vocoder: the GPT's hidden states and a speaker embedding to audio at 24,000 Hz."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models._layers.hifigan import Hifigan, HifiganSettings, fold_weight_norm
from trainer.models.xtts.network.sizes import (
    CODE_STRIDE,
    HOP_LENGTH,
    OUTPUT_RATE,
    SAMPLE_RATE,
    VocoderSizes,
)
from trainer.models.xtts.network.strict_loading import (
    below,
    count_modules,
    draw_weight,
    load_strict,
    shape_of,
)

_WHAT = "The vocoder"
_PREFIX = "waveform_decoder."
_LOUDNESS = 0.1  # of random weights; chosen by hand, audible but not loud


class XttsVocoder(nn.Module):
    """Turn hidden states into audio; keys are those under `hifigan_decoder.`, no weight norm."""

    def __init__(self, sizes: VocoderSizes) -> None:
        super().__init__()
        self.waveform_decoder = Hifigan(
            HifiganSettings(
                n_mels=sizes.latent_width,
                width=sizes.width,
                upsample_rates=sizes.upsample_rates,
                upsample_kernels=sizes.upsample_kernels,
                block_kernels=sizes.block_kernels,
                dilations=sizes.dilations,
                speaker_width=sizes.speaker_width,
                has_post_bias=False,
            )
        )

    def forward(self, latents: Tensor, speaker: Tensor) -> Tensor:
        """Return audio (B, T_wav) at 24,000 Hz in [-1, 1], about 1115 samples per latent.

        latents: (B, T, D), the GPT's hidden states, one per code. speaker: (B, S, 1),
        L2-normalized.
        """
        frames = _stretch(latents.transpose(1, 2), CODE_STRIDE / HOP_LENGTH)
        frames = _stretch(frames, OUTPUT_RATE / SAMPLE_RATE)
        return self.waveform_decoder(frames, speaker)


def _stretch(frames: Tensor, factor: float) -> Tensor:
    """Interpolate frames (B, D, T) in time."""
    # As in coqui-tts, by a factor; an output length would place the frames differently.
    return F.interpolate(frames, scale_factor=factor, mode="linear")


def vocoder_sizes(state: dict[str, Tensor]) -> VocoderSizes:
    """Derive the sizes from the shapes of published weights under `hifigan_decoder.` or deeper.

    Two sizes do not follow from shapes and are assumed as published: a stage upsamples by half its
    kernel, and dilations are 1, 3, 5, ...

    Raises:
        CheckpointError: a weight that determines a size is missing.
    """
    state = fold_weight_norm(below(state, _PREFIX))
    width, latent_width, _ = shape_of(state, "conv_pre.weight", 3, _WHAT)
    _, speaker_width, _ = shape_of(state, "cond_layer.weight", 3, _WHAT)
    stages = range(count_modules(state, "ups.{}."))
    kernels = tuple(shape_of(state, f"ups.{stage}.weight", 3, _WHAT)[2] for stage in stages)
    num_blocks = count_modules(state, "resblocks.{}.") // max(len(stages), 1)
    names = [f"resblocks.{block}.convs1.0.weight" for block in range(num_blocks)]
    return VocoderSizes(
        latent_width=latent_width,
        speaker_width=speaker_width,
        width=width,
        upsample_rates=tuple(kernel // 2 for kernel in kernels),
        upsample_kernels=kernels,
        block_kernels=tuple(shape_of(state, name, 3, _WHAT)[2] for name in names),
        dilations=tuple(range(1, 2 * count_modules(state, "resblocks.0.convs1.{}."), 2)),
    )


def load_vocoder(state: dict[str, Tensor], sizes: VocoderSizes) -> XttsVocoder:
    """Make the vocoder from published weights under `hifigan_decoder.`; ignore other networks.

    Raises:
        CheckpointError: weights are missing, unexpected or of another shape.
    """
    folded = fold_weight_norm(below(state, _PREFIX))
    needed = {_PREFIX + name: value for name, value in folded.items()}
    return load_strict(lambda: XttsVocoder(sizes), needed, _WHAT)


def random_vocoder_state(sizes: VocoderSizes, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw random weights in the published layout; the audio is an audible, steady noise."""
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in XttsVocoder(sizes).state_dict().items()}
    state = {}
    for name, shape in shapes.items():
        if name.endswith("bias"):
            state[name] = torch.zeros(shape)
        elif ".ups." in name:
            # A stage upsamples by half its kernel, so each sample sums two taps per channel.
            state |= _split(name, draw_weight(shape, generator, 2**0.5, fan_in=2 * shape[0]))
        elif ".resblocks." in name:
            # Small, so that the sum of many residual blocks does not saturate the tanh.
            state |= _split(name, draw_weight(shape, generator, 0.3))
        elif ".cond" in name:
            # An embedding has unit length, whatever its width.
            state[name] = draw_weight(shape, generator, fan_in=1)
        else:
            gain = _LOUDNESS if ".conv_post." in name else 1.0
            state[name] = draw_weight(shape, generator, gain)
    return state


def _split(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Return the two tensors of a weight-normed convolution: lengths and directions."""
    stem = name.removesuffix("weight") + "parametrizations.weight.original"
    lengths = weight.flatten(1).norm(dim=1).view(-1, 1, 1)
    return {f"{stem}0": lengths, f"{stem}1": weight}

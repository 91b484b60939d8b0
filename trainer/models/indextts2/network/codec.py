"""The encoder half of the semantic codec of MaskGCT (Wang et al. 2024, arXiv 2409.00750).

ConvNeXt blocks and one factorized codebook turn each frame of semantic features into a code. Module
names match the published `semantic_codec/model.safetensors`, with weight norm folded in.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from trainer.core.errors import CheckpointError
from trainer.models._layers.hifigan import fold_weight_norm

CODEC_LICENCE = (
    "The semantic codec of MaskGCT is under CC-BY-NC-4.0: codes made with it, and models trained "
    "on them, are for non-commercial use only."
)

# Training only turns audio into codes, so the decoder need not be read.
_PREFIXES = ("encoder.", "quantizer.quantizers.0.in_project.", "quantizer.quantizers.0.codebook.")


@dataclass(frozen=True)
class CodecSizes:
    """Shapes of the published codec."""

    feature_width: int = 1024
    width: int = 384
    inner: int = 2048
    blocks: int = 12
    num_codes: int = 8192
    code_width: int = 8


class CodecEncoder(nn.Module):
    """Turn normalized semantic features into codes."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        self.encoder = nn.Sequential(_Backbone(sizes), nn.Linear(sizes.width, sizes.feature_width))
        self.quantizer = nn.Module()
        self.quantizer.quantizers = nn.ModuleList([_Codebook(sizes)])

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        """features: (B, T, F). Returns codes (B, T) int64."""
        return self.quantizer.get_submodule("quantizers.0")(self.encoder(features))


class _Backbone(nn.Module):
    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        self.embed = nn.Conv1d(sizes.feature_width, sizes.width, 7, padding=3)
        self.norm = nn.LayerNorm(sizes.width, eps=1e-6)  # as published; PyTorch's default is 1e-5
        self.convnext = nn.ModuleList(_Block(sizes) for _ in range(sizes.blocks))
        self.final_layer_norm = nn.LayerNorm(sizes.width, eps=1e-6)

    def forward(self, features: Tensor) -> Tensor:
        """features: (B, T, F). Returns (B, T, D)."""
        hidden = self.norm(self.embed(features.transpose(1, 2)).transpose(1, 2))
        for block in self.convnext:
            hidden = block(hidden)
        return self.final_layer_norm(hidden)


class _Block(nn.Module):
    """A ConvNeXt block (Liu et al. 2022, arXiv 2201.03545)."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        width = sizes.width
        self.dwconv = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, sizes.inner)
        self.pwconv2 = nn.Linear(sizes.inner, width)
        # The initial layer scale of Vocos, whose ConvNeXt blocks the codec uses.
        self.gamma = nn.Parameter(torch.full((width,), 1 / sizes.blocks))

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (B, T, D). Returns (B, T, D)."""
        mixed = self.norm(self.dwconv(hidden.transpose(1, 2)).transpose(1, 2))
        return hidden + self.gamma * self.pwconv2(F.gelu(self.pwconv1(mixed)))


class _Codebook(nn.Module):
    """Quantize frames: the code whose row has the highest cosine similarity to the projection."""

    def __init__(self, sizes: CodecSizes) -> None:
        super().__init__()
        self.in_project = nn.Conv1d(sizes.feature_width, sizes.code_width, 1)
        self.codebook = nn.Embedding(sizes.num_codes, sizes.code_width)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (B, T, F). Returns codes (B, T) int64."""
        projected = self.in_project(hidden.transpose(1, 2)).transpose(1, 2)
        # Among unit vectors, the one with the largest product is also the nearest.
        similarity = F.normalize(projected, dim=-1) @ F.normalize(self.codebook.weight, dim=-1).T
        return similarity.argmax(dim=-1)


def load_codec(path: Path) -> CodecEncoder:
    """Read the encoder from a codec's safetensors file; the decoder is not read.

    Raises:
        CheckpointError: the file is missing, damaged or of another model.
    """
    state: dict[str, Tensor] = {}
    try:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 - no mapping
                if name.startswith(_PREFIXES):
                    state[name] = file.get_tensor(name)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{path} cannot be read as the semantic codec: {error}. Choose the file "
            "semantic_codec/model.safetensors that was published with MaskGCT."
        ) from None
    return make_codec(state, path)


def make_codec(state: dict[str, Tensor], path: Path) -> CodecEncoder:
    """Return the codec with these weights, in float32 and eval mode; loading is strict.

    Raises:
        CheckpointError: the weights are those of another model.
    """
    state = fold_weight_norm(state)
    try:
        sizes = _sizes_of(state)
        # `assign` puts the weights of the file in place, so none have to be drawn.
        with torch.device("meta"):
            codec = CodecEncoder(sizes)
        codec.load_state_dict({name: value.float() for name, value in state.items()}, assign=True)
    except (KeyError, RuntimeError, ValueError) as error:
        raise CheckpointError(
            f"{path} is not the semantic codec of MaskGCT ({str(error)[:200]}). Choose the file "
            "semantic_codec/model.safetensors that was published with MaskGCT."
        ) from None
    return codec.eval().requires_grad_(False)


def _sizes_of(state: dict[str, Tensor]) -> CodecSizes:
    width, feature_width, _ = state["encoder.0.embed.weight"].shape
    num_codes, code_width = state["quantizer.quantizers.0.codebook.weight"].shape
    # Sizes come from the weights, so that a random base can use a small codec.
    names = [name for name in state if name.startswith("encoder.0.convnext.")]
    return CodecSizes(
        feature_width=feature_width,
        width=width,
        inner=len(state["encoder.0.convnext.0.pwconv1.weight"]),
        blocks=len({name.split(".")[3] for name in names}),
        num_codes=num_codes,
        code_width=code_width,
    )

"""The encoder half of XTTS's DVAE: mel frames to audio codes, one per four frames."""

import torch
from torch import Tensor, nn

from trainer.models.xtts.network.sizes import DvaeSizes
from trainer.models.xtts.network.strict_loading import (
    count_modules,
    draw_weight,
    load_strict,
    shape_of,
)

_WHAT = "The DVAE"
_UNUSED = ("decoder.", "discrete_loss.")


class DvaeEncoder(nn.Module):
    """Turn mel frames into codes; keys are the published ones under `encoder.` and `codebook.`."""

    def __init__(self, sizes: DvaeSizes) -> None:
        super().__init__()
        inner = sizes.hidden * 2
        self.encoder = nn.Sequential(
            nn.Sequential(nn.Conv1d(sizes.n_mels, sizes.hidden, 3, 2, 1), nn.ReLU()),
            nn.Sequential(nn.Conv1d(sizes.hidden, inner, 3, 2, 1), nn.ReLU()),
            *(_ResidualBlock(inner) for _ in range(sizes.num_resnet_blocks)),
            nn.Conv1d(inner, sizes.codebook_width, 1),
        )
        self.codebook = _Codebook(sizes)

    def encode(self, mel: Tensor) -> Tensor:
        """Return the codes (B, ceil(T_mel / 4)) int64 of a mel (B, M, T_mel)."""
        return self.codebook(self.encoder(mel).transpose(1, 2))

    def forward(self, mel: Tensor) -> Tensor:
        """Return the codes (B, ceil(T_mel / 4)) int64 of a mel (B, M, T_mel)."""
        return self.encode(mel)


class _ResidualBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(width, width, 1),
        )

    def forward(self, values: Tensor) -> Tensor:
        """values: (B, D, T). Returns the same shape."""
        return values + self.net(values)


class _Codebook(nn.Module):
    """The codebook, whose columns are entries.

    The other two buffers are moving averages of the DVAE's training; strict loading needs them.
    """

    embed: Tensor

    def __init__(self, sizes: DvaeSizes) -> None:
        super().__init__()
        shape = (sizes.codebook_width, sizes.num_codes)
        self.register_buffer("embed", torch.randn(shape))
        self.register_buffer("cluster_size", torch.zeros(sizes.num_codes))
        self.register_buffer("embed_avg", torch.zeros(shape))

    def forward(self, values: Tensor) -> Tensor:
        """Return the nearest entry (B, T) int64 of each value (B, T, D)."""
        # The square of the value is the same for all entries, but upstream includes it. Without
        # it, rounding could resolve a near tie differently.
        squares = values.square().sum(-1, keepdim=True)
        distance = squares - 2 * values @ self.embed + self.embed.square().sum(0)
        return distance.argmin(-1)


def dvae_sizes(state: dict[str, Tensor]) -> DvaeSizes:
    """Derive the sizes from the shapes of published weights.

    Raises:
        CheckpointError: a weight that determines a size is missing.
    """
    hidden, n_mels, _ = shape_of(state, "encoder.0.0.weight", 3, _WHAT)
    codebook_width, num_codes = shape_of(state, "codebook.embed", 2, _WHAT)
    # encoder.0 and encoder.1 are convolutions; the blocks follow.
    blocks = count_modules(state, "encoder.{}.net.", first=2)
    return DvaeSizes(n_mels, hidden, codebook_width, num_codes, blocks)


def load_dvae(state: dict[str, Tensor], sizes: DvaeSizes) -> DvaeEncoder:
    """Make the encoder from published weights; those of the decoder are ignored.

    Raises:
        CheckpointError: weights are missing, unexpected or of another shape.
    """
    needed = {name: value for name, value in state.items() if not name.startswith(_UNUSED)}
    return load_strict(lambda: DvaeEncoder(sizes), needed, _WHAT)


def random_dvae_state(sizes: DvaeSizes, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw random weights in the published layout, for encoder and decoder.

    Rows with zero mean and a codebook on a sphere make codes depend on the shape of the mel, not
    on its level. Otherwise, most frames would share a few codes.
    """
    state = {}
    for name, shape in _published_shapes(sizes).items():
        if name.endswith("bias"):
            state[name] = torch.zeros(shape)
        else:
            weight = draw_weight(shape, generator, 2**0.5)  # He et al. 2015, for ReLU
            state[name] = weight - weight.mean((1, 2), keepdim=True)
    entries = torch.randn((sizes.codebook_width, sizes.num_codes), generator=generator)
    entries /= entries.norm(dim=0)
    return state | {
        "discrete_loss.accumulator_index": torch.zeros(1, dtype=torch.long),
        "discrete_loss.accumulator_filled": torch.zeros(1, dtype=torch.long),
        "discrete_loss.accumulator": torch.zeros((100, sizes.num_codes)),
        "codebook.embed": entries,
        "codebook.cluster_size": torch.ones(sizes.num_codes),
        "codebook.embed_avg": entries.clone(),
    }


def _published_shapes(sizes: DvaeSizes) -> dict[str, torch.Size]:
    """Return the shapes of all convolutions of encoder and decoder."""
    inner, count = 2 * sizes.hidden, sizes.num_resnet_blocks
    with torch.device("meta"):
        # The decoder mirrors the encoder: a projection, the blocks, two upsampling convolutions.
        decoder: dict[str, nn.Module] = {"0": nn.Conv1d(sizes.codebook_width, inner, 1)}
        decoder |= {str(1 + index): _ResidualBlock(inner) for index in range(count)}
        decoder[f"{1 + count}.0.conv"] = nn.Conv1d(inner, inner, 3)
        decoder[f"{2 + count}.0.conv"] = nn.Conv1d(inner, sizes.hidden, 3)
        decoder[f"{3 + count}"] = nn.Conv1d(sizes.hidden, sizes.n_mels, 1)
        parts = {"encoder": DvaeEncoder(sizes).encoder}
        parts |= {f"decoder.{name}": module for name, module in decoder.items()}
    return {
        f"{part}.{name}": value.shape
        for part, module in parts.items()
        for name, value in module.state_dict().items()
    }

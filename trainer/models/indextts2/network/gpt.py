"""The GPT of IndexTTS-2 (Zhou et al. 2025, arXiv 2506.21619), UnifiedVoice v2.

Module names match the published state_dict. A row is one contiguous causal sequence [voice | text |
audio | padding]. There is no padding between text and audio, because inference has none there.

Without conditioning, the network takes precomputed voices and has 301 of the 665 published tensors;
the other 364 need no memory.
"""

import torch
from torch import Tensor, nn

from trainer.core.errors import DataError
from trainer.models._layers.embeddings import Positions, make_embedding
from trainer.models._layers.gpt2 import Gpt2Trunk
from trainer.models._layers.packing import arrange
from trainer.models._layers.perceiver import Perceiver
from trainer.models.indextts2.network.conformer import Conformer
from trainer.models.indextts2.network.sizes import Sizes

CONDITIONING = (
    "conditioning_encoder", "perceiver_encoder", "emo_conditioning_encoder",
    "emo_perceiver_encoder", "emovec_layer", "emo_layer",
)  # fmt: skip
"""The modules that turn a reference into a voice, by their published names."""


class UnifiedVoice(nn.Module):
    """Predict audio codes from a voice and text; `loss_weights` is read by the losses."""

    def __init__(
        self, sizes: Sizes, dropout: float = 0.1, *, with_conditioning: bool = False
    ) -> None:
        super().__init__()
        self.sizes = sizes
        self.with_conditioning = with_conditioning
        self.loss_weights = {"text_ce": 0.2, "mel_ce": 0.8}
        width = sizes.width
        if with_conditioning:
            add_conditioning(self, sizes)
        self.text_embedding = make_embedding(sizes.num_text_tokens, width)
        self.mel_embedding = make_embedding(sizes.num_audio_tokens, width)
        self.gpt = Gpt2Trunk(sizes.layers, width, sizes.heads, dropout)
        self.mel_pos_embedding = Positions(sizes.audio_positions, width)
        self.text_pos_embedding = Positions(sizes.text_positions, width)
        self.final_norm = nn.LayerNorm(width)
        self.text_head = nn.Linear(width, sizes.num_text_tokens)
        self.mel_head = nn.Linear(width, sizes.num_audio_tokens)
        self.speed_emb = nn.Embedding(2, width)
        nn.init.zeros_(self.speed_emb.weight)  # as in index-tts

    def forward(
        self,
        text_ids: Tensor,
        audio_ids: Tensor,
        layout: Tensor,
        text_index: Tensor,
        audio_index: Tensor,
        condition: Tensor,
        emotion: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Predict the next text and audio tokens of teacher-forced rows.

        text_ids: (B, T_text) int64 and audio_ids: (B, T_audio) int64, padded at the end. layout:
        (B, T) int64, the index of each position into [voice | text | audio | zero]. text_index,
        audio_index: (K,) int64, indices into the flattened rows where logits are wanted.
        condition: (B, num_latents, D) and emotion: (B, D), as `voice` returns them. Returns text
        logits (K, V) and audio logits (K, V).
        """
        parts = (
            self.prompt(condition, emotion),
            self.text_pos_embedding(self.text_embedding(text_ids)),
            self.mel_pos_embedding(self.mel_embedding(audio_ids)),
        )
        hidden = self.gpt(arrange(parts, layout)).flatten(0, 1)  # (B * T, D)
        # Only wanted positions: logits for all of them would be (B, T, V), most of them unused.
        text = self.final_norm(hidden.index_select(0, text_index))
        audio = self.final_norm(hidden.index_select(0, audio_index))
        return self.text_head(text), self.mel_head(audio)

    def prompt(self, condition: Tensor, emotion: Tensor) -> Tensor:
        """Build the prompt of a row, (B, num_latents + 2, D).

        condition: (B, num_latents, D). emotion: (B, D). As upstream, the prompt ends in both speed
        embeddings, 1 before 0, in training and inference.
        """
        speeds = self.speed_emb.weight.flip(0).expand(len(condition), -1, -1)
        voice = condition.to(speeds.dtype) + emotion.to(speeds.dtype)[:, None]
        return torch.cat([voice, speeds], dim=1)  # (B, num_latents + 2, D)

    def voice(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Turn references into voices.

        features: (B, T, F) semantic features. mask: bool (B, T). Returns condition
        (B, num_latents, D) and emotion (B, D).
        """
        return voice_of(self, features, mask)


class Conditioning(nn.Module):
    """The conditioning alone, to compute voices before training."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        add_conditioning(self, sizes)

    def forward(self, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """features: (B, T, F). mask: bool (B, T). Returns (B, num_latents, D) and (B, D)."""
        return voice_of(self, features, mask)


def add_conditioning(module: nn.Module, sizes: Sizes) -> None:
    """Add the encoders and layers for speaker and emotion to a module."""
    speaker, emotion = sizes.speaker, sizes.emotion
    module.conditioning_encoder = Conformer(sizes.feature_width, speaker)
    module.perceiver_encoder = Perceiver(
        sizes.width,
        num_latents=sizes.num_latents,
        layers=sizes.perceiver_layers,
        heads=speaker.heads,
        inner=_inner(sizes.width, sizes),
        context=speaker.width if speaker.width != sizes.width else None,
    )
    module.emo_conditioning_encoder = Conformer(sizes.feature_width, emotion)
    module.emo_perceiver_encoder = Perceiver(
        sizes.emotion_width,
        num_latents=1,
        layers=sizes.perceiver_layers,
        heads=emotion.heads,
        inner=_inner(sizes.emotion_width, sizes),
        context=emotion.width if emotion.width != sizes.emotion_width else None,
    )
    module.emovec_layer = nn.Linear(sizes.emotion_width, sizes.width)
    module.emo_layer = nn.Linear(sizes.width, sizes.width)


def voice_of(module: nn.Module, features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Run the modules that `add_conditioning` added.

    features: (B, T, F). mask: bool (B, T). Returns condition (B, num_latents, D), emotion (B, D).

    Raises:
        DataError: there are fewer than the 3 frames that the first convolution needs.
    """
    # The first convolution has kernel 3; frames are 20 ms.
    if features.shape[1] < 3:
        raise DataError("A reference is shorter than 0.06 s. Use a longer clip.")
    part = module.get_submodule
    features = features.to(part("emo_layer").get_parameter("weight").dtype)
    condition = part("perceiver_encoder")(*part("conditioning_encoder")(features, mask))
    emotion = part("emo_perceiver_encoder")(*part("emo_conditioning_encoder")(features, mask))
    return condition, part("emo_layer")(part("emovec_layer")(emotion.squeeze(1)))


def _inner(width: int, sizes: Sizes) -> int:
    # A gated layer has a third matrix; a factor of 2/3 keeps the number of weights the same.
    return int(width * sizes.perceiver_mult * 2 / 3)

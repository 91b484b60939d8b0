"""The GPT of XTTS v2 (Casanova et al. 2024, arXiv 2406.04904) with its voice conditioning.

Module names match the published state_dict without the leading `gpt.`. A row is one contiguous
causal sequence [voice latents | text | audio | padding]. Since padding stands only at its end,
causal attention is exact for every real position, and no mask tensor is needed.

All values are in the state_dict, so a network built on the `meta` device is complete after
`load_state_dict(state, strict=True, assign=True)`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.core.errors import DataError
from trainer.models._layers.attention import SelfAttention
from trainer.models._layers.embeddings import Positions, make_embedding
from trainer.models._layers.gpt2 import Gpt2Trunk
from trainer.models._layers.packing import arrange
from trainer.models._layers.perceiver import Perceiver
from trainer.models.xtts.network.sizes import GptSizes


class XttsGpt(nn.Module):
    """Predict audio codes from voice latents and text.

    `loss_weights` is read by the losses; `upstream_masking` records the option.
    """

    def __init__(self, sizes: GptSizes, dropout: float = 0.1) -> None:
        super().__init__()
        self.sizes = sizes
        self.loss_weights = {"text_ce": 0.01, "mel_ce": 1.0}  # as in GPTArgs of coqui-tts
        self.upstream_masking = False
        width = sizes.width
        self.conditioning_encoder = ConditioningEncoder(sizes)
        self.conditioning_perceiver = Perceiver(
            width,
            num_latents=sizes.num_latents,
            layers=sizes.perceiver_layers,
            heads=sizes.perceiver_heads,
            # A gated layer has a third matrix; 2/3 of the usual 4 keeps the number of weights.
            inner=int(width * 4 * 2 / 3),
        )
        self.text_embedding = make_embedding(sizes.num_text_tokens, width)
        self.mel_embedding = make_embedding(sizes.num_audio_tokens, width)
        self.text_pos_embedding = Positions(sizes.text_positions, width)
        self.mel_pos_embedding = Positions(sizes.audio_positions, width)
        self.gpt = Gpt2Trunk(sizes.layers, width, sizes.heads, dropout)
        self.final_norm = nn.LayerNorm(width)
        self.text_head = nn.Linear(width, sizes.num_text_tokens)
        self.mel_head = nn.Linear(width, sizes.num_audio_tokens)

    def condition(self, mel: Tensor) -> Tensor:
        """Turn conditioning mels (B, M, T_mel) into voice latents (B, num_latents, D)."""
        mel = mel.to(self.conditioning_encoder.init.weight.dtype)
        return self.conditioning_perceiver(self.conditioning_encoder(mel))

    def forward(
        self,
        text_ids: Tensor,
        audio_ids: Tensor,
        layout: Tensor,
        text_index: Tensor,
        audio_index: Tensor,
        reference: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Predict the next text and audio tokens of teacher-forced rows.

        text_ids: (B, T_text) int64 and audio_ids: (B, T_audio) int64, padded at the end. layout:
        (B, T) int64, the index of each position into [latents | text | audio | zero]. text_index,
        audio_index: (K,) int64, indices into the flattened rows where logits are wanted. reference:
        (B, M, T_mel). Returns text logits (K, V) and audio logits (K, V).
        """
        latents = self.condition(reference)
        parts = (latents, self.embed_text(text_ids), self.embed_audio(audio_ids))
        hidden = self.gpt(arrange(parts, layout)).flatten(0, 1)  # (B * T, D)
        text = self.final_norm(hidden.index_select(0, text_index))
        audio = self.final_norm(hidden.index_select(0, audio_index))
        return self.text_head(text), self.mel_head(audio)

    def audio_latents(self, latents: Tensor, tokens: Tensor, codes: Tensor) -> Tensor:
        """Return the input of the vocoder: the hidden vectors that predict each code.

        latents: (1, num_latents, D). tokens: (T_text,) without start and stop. codes: (T,); include
        the stop code to get as many vectors as upstream. Returns (T, D). The model must be in eval
        mode.
        """
        start = codes.new_tensor([self.sizes.start_audio])
        audio = self.embed_audio(torch.cat([start, codes[:-1]])[None])
        hidden = self.gpt(torch.cat([self.prefix(latents, tokens), audio], dim=1))
        return self.final_norm(hidden[0, -len(codes) :])

    def prefix(self, latents: Tensor, tokens: Tensor) -> Tensor:
        """Embed everything before the audio, with the start and stop of the text.

        latents: (1, num_latents, D). tokens: (T_text,). Returns (1, T, D).

        Raises:
            DataError: the text is longer than the position table.
        """
        sizes = self.sizes
        if len(tokens) > sizes.max_text_tokens:
            raise DataError(
                f"The text has {len(tokens)} tokens; XTTS accepts at most {sizes.max_text_tokens}. "
                "Split it into shorter sentences."
            )
        text = F.pad(F.pad(tokens, (1, 0), value=sizes.start_text), (0, 1), value=sizes.stop_text)
        return torch.cat([latents, self.embed_text(text[None])], dim=1)

    def embed_text(self, ids: Tensor) -> Tensor:
        """Embed text ids (B, T_text) with their positions: (B, T_text, D)."""
        return self.text_pos_embedding(self.text_embedding(ids))

    def embed_audio(self, ids: Tensor, first: int = 0) -> Tensor:
        """Embed audio ids (B, T) with positions that start at `first`: (B, T, D)."""
        return self.mel_pos_embedding(self.mel_embedding(ids), first)


class ConditioningEncoder(nn.Module):
    """Encode a mel to one vector per frame, by attention without positions."""

    def __init__(self, sizes: GptSizes) -> None:
        super().__init__()
        self.init = nn.Conv1d(sizes.n_mels, sizes.width, 1)
        self.attn = nn.ModuleList(
            _ConditioningBlock(sizes.width, sizes.heads) for _ in range(sizes.conditioning_layers)
        )

    def forward(self, mel: Tensor) -> Tensor:
        """mel: (B, M, T_mel). Returns (B, T_mel, D)."""
        hidden = _pointwise(self.init, mel.transpose(1, 2))
        for block in self.attn:
            hidden = block(hidden)
        return hidden


class _ConditioningBlock(SelfAttention):
    """Attention between frames; the residual is the normalized input, as in coqui-tts."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(heads)
        self.norm = nn.GroupNorm(_num_groups(width), width)
        self.qkv = nn.Conv1d(width, 3 * width, 1)
        self.proj_out = nn.Conv1d(width, width, 1)
        # As in coqui-tts: at first, attention adds nothing.
        for value in self.proj_out.parameters():
            nn.init.zeros_(value)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: (B, T_mel, D). Returns (B, T_mel, D)."""
        batch, length, width = hidden.shape
        normed = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        # The published layout is split into heads first, then into query, key and value.
        split = _pointwise(self.qkv, normed).view(batch, length, self.num_heads, 3, -1)
        query, key, value = split.transpose(1, 2).unbind(dim=3)  # (B, heads, T_mel, D / heads)
        return normed + _pointwise(self.proj_out, self.attend(query, key, value))


def _pointwise(layer: nn.Conv1d, values: Tensor) -> Tensor:
    """Apply a convolution of kernel size 1 to (B, T, D), the layout that attention needs."""
    return F.linear(values, layer.weight.squeeze(-1), layer.bias)


def _num_groups(width: int) -> int:
    """Return the number of groups of a GroupNorm of this width, by coqui-tts's rule."""
    groups = 8 if width <= 16 else 16 if width <= 64 else 32
    while width % groups:
        groups //= 2
    return groups

"""The GPT of XTTS: published keys, contiguous rows, losses, attention kernels, checkpointing."""

import copy
import types
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.core.errors import DataError
from trainer.core.types import Batch, Features
from trainer.models._layers.attention import SelfAttention
from trainer.models._layers.dropout import Dropout
from trainer.models._layers.gpt2 import Gpt2Trunk, InputMajorLinear
from trainer.models.xtts.network.gpt import ConditioningEncoder, XttsGpt
from trainer.models.xtts.network.sizes import TINY, GptSizes
from trainer.models.xtts.training.batches import counts, make_collate
from trainer.models.xtts.training.losses import blocks, losses, validate
from trainer.optimizations.gradient_checkpointing import _checkpointed_forward

SIZES = replace(
    TINY.gpt, width=32, num_text_tokens=270, n_mels=8, num_latents=5, conditioning_layers=1
)
NAMES = ("text_ids", "audio_ids", "layout", "text_index", "audio_index", "reference")

LAYER = {
    "ln_1.weight": (1024,),
    "ln_1.bias": (1024,),
    "ln_2.weight": (1024,),
    "ln_2.bias": (1024,),
    "attn.c_attn.weight": (1024, 3072),
    "attn.c_attn.bias": (3072,),
    "attn.c_proj.weight": (1024, 1024),
    "attn.c_proj.bias": (1024,),
    "mlp.c_fc.weight": (1024, 4096),
    "mlp.c_fc.bias": (4096,),
    "mlp.c_proj.weight": (4096, 1024),
    "mlp.c_proj.bias": (1024,),
}
CONDITIONING_LAYER = {
    "norm.weight": (1024,),
    "norm.bias": (1024,),
    "qkv.weight": (3072, 1024, 1),
    "qkv.bias": (3072,),
    "proj_out.weight": (1024, 1024, 1),
    "proj_out.bias": (1024,),
}
PERCEIVER_LAYER = {
    "0.to_q.weight": (512, 1024),
    "0.to_kv.weight": (1024, 1024),
    "0.to_out.weight": (1024, 512),
    "1.0.weight": (5460, 1024),
    "1.0.bias": (5460,),
    "1.2.weight": (1024, 2730),
    "1.2.bias": (1024,),
}
REST = {
    "conditioning_encoder.init.weight": (1024, 80, 1),
    "conditioning_encoder.init.bias": (1024,),
    "conditioning_perceiver.latents": (32, 1024),
    "conditioning_perceiver.norm.gamma": (1024,),
    "text_embedding.weight": (6681, 1024),
    "mel_embedding.weight": (1026, 1024),
    "text_pos_embedding.emb.weight": (404, 1024),
    "mel_pos_embedding.emb.weight": (608, 1024),
    "gpt.ln_f.weight": (1024,),
    "gpt.ln_f.bias": (1024,),
    "final_norm.weight": (1024,),
    "final_norm.bias": (1024,),
    "text_head.weight": (6681, 1024),
    "text_head.bias": (6681,),
    "mel_head.weight": (1026, 1024),
    "mel_head.bias": (1026,),
}


def make_clip(
    num_tokens: int, num_codes: int, masked: tuple[int, int] = (0, 0), num_frames: int = 12
) -> Features:
    generator = np.random.default_rng(num_tokens * 100 + num_codes)
    return {
        "tokens": generator.integers(3, 260, num_tokens).astype(np.int32),
        "codes": generator.integers(0, 1024, num_codes).astype(np.int16),
        "reference": generator.normal(0, 1, (SIZES.n_mels, num_frames)).astype(np.float16),
        "reference_frames": np.array(10, np.int32),
        "masked": np.array(masked, np.int32),
    }


def make_clips(masked: tuple[int, int] = (0, 0)) -> list[Features]:
    return [make_clip(7, 9), make_clip(3, 14, masked), make_clip(11, 4)]


def make_batch(clips: Sequence[Features], upstream: bool = False) -> Batch:
    found = [counts(clip) for clip in clips]
    totals = {name: sum(count[name] for count in found) for name in found[0]}
    return Batch(make_collate(SIZES, upstream)(clips), ["clip"] * len(clips), totals, 1.0)


def make_network(dropout: float = 0.0, dtype: torch.dtype = torch.float64) -> XttsGpt:
    torch.manual_seed(3)
    network = XttsGpt(SIZES, dropout)
    with torch.no_grad():
        # Away from the fresh start, where blocks of the encoder do nothing and norms are neutral.
        for value in network.parameters():
            value.add_(0.1 * torch.randn_like(value))
    return network.to(dtype)


def gradients(network: nn.Module, found: dict[str, Tensor]) -> dict[str, Tensor]:
    network.zero_grad()
    torch.stack(list(found.values())).sum().backward()
    return {name: value.grad.clone() for name, value in network.named_parameters()}  # type: ignore[union-attr]


def padded_losses(network: XttsGpt, clips: list[Features], *, see_stop: bool) -> dict[str, Tensor]:
    """The textbook way: [latents | padded text | padded audio] with an explicit mask."""
    num_text = max(len(clip["tokens"]) for clip in clips) + 2
    num_audio = max(len(clip["codes"]) for clip in clips) + 4
    start = SIZES.num_latents
    text_ids = torch.zeros(len(clips), num_text, dtype=torch.long)
    audio_ids = torch.full((len(clips), num_audio), SIZES.stop_audio)
    text_targets = torch.full_like(text_ids, -1)
    audio_targets = torch.full_like(audio_ids, -1)
    seen = torch.zeros(len(clips), start + num_text + num_audio, dtype=torch.bool)
    seen[:, :start] = True
    for row, clip in enumerate(clips):
        tokens, codes = torch.tensor(clip["tokens"]), torch.tensor(clip["codes"])
        length, count = len(tokens), len(codes)
        text_ids[row, 0], text_ids[row, 1 : length + 1] = SIZES.start_text, tokens.long()
        text_targets[row, :length], text_targets[row, length] = tokens.long(), SIZES.stop_text
        audio_ids[row, 0], audio_ids[row, 1 : count + 1] = SIZES.start_audio, codes.long()
        audio_targets[row, :count] = codes.long()
        audio_targets[row, count : count + 4] = SIZES.stop_audio
        seen[row, start : start + length + 1 + see_stop] = True
        seen[row, start + num_text : start + num_text + count + 4] = True
    for row, clip in enumerate(clips):
        first, end = clip["masked"]
        audio_targets[row, first:end] = -1

    mel = torch.tensor(np.stack([clip["reference"][:, :10] for clip in clips])).double()
    text = network.text_embedding(text_ids) + network.text_pos_embedding.emb.weight[:num_text]
    audio = network.mel_embedding(audio_ids) + network.mel_pos_embedding.emb.weight[:num_audio]
    hidden = torch.cat([network.condition(mel), text, audio], dim=1)
    hidden = network.final_norm(masked_trunk(network.gpt, hidden, seen))[:, start:]
    text_logits = network.text_head(hidden[:, :num_text]).transpose(1, 2)
    audio_logits = network.mel_head(hidden[:, num_text:]).transpose(1, 2)
    text_sum = F.cross_entropy(text_logits, text_targets, ignore_index=-1, reduction="sum")
    audio_sum = F.cross_entropy(audio_logits, audio_targets, ignore_index=-1, reduction="sum")
    return {
        "text_ce": 0.01 * text_sum / sum(len(clip["tokens"]) + 1 for clip in clips),
        "mel_ce": audio_sum / (audio_targets != -1).sum(),
    }


def masked_trunk(trunk: Gpt2Trunk, hidden: Tensor, seen: Tensor) -> Tensor:
    length = hidden.shape[1]
    mask = torch.ones(length, length, dtype=torch.bool).tril() & seen[:, None, None]
    for block in trunk.h:
        layers: Any = block
        query, key, value = layers.attn.c_attn(layers.ln_1(hidden)).chunk(3, dim=-1)
        heads = [
            part.unflatten(2, (SIZES.heads, -1)).transpose(1, 2) for part in (query, key, value)
        ]
        mixed = F.scaled_dot_product_attention(*heads, attn_mask=mask)
        hidden = hidden + layers.attn.c_proj(mixed.transpose(1, 2).flatten(2))
        hidden = hidden + layers.mlp(layers.ln_2(hidden))
    return trunk.ln_f(hidden)


class _NothingReadBack(TorchDispatchMode):
    """Fails on operators that make the host wait for the device."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.name().split(".")[0]
        assert name not in {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}
        return func(*args, **(kwargs or {}))


class _FlashMasks(TorchDispatchMode):
    """Notes which mask each call of the flash kernel gets."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: list[Tensor | None] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.name().startswith("aten::_scaled_dot_product_flash_attention_for_cpu"):
            self.masks.append((kwargs or {}).get("attn_mask"))
        return func(*args, **(kwargs or {}))


def test_the_full_size_has_the_published_keys_and_shapes() -> None:
    expected = dict(REST)
    for prefix, num_layers, layer in (
        ("gpt.h", 30, LAYER),
        ("conditioning_encoder.attn", 6, CONDITIONING_LAYER),
        ("conditioning_perceiver.layers", 2, PERCEIVER_LAYER),
    ):
        for index in range(num_layers):
            expected |= {f"{prefix}.{index}.{name}": shape for name, shape in layer.items()}

    with torch.device("meta"):
        state = XttsGpt(GptSizes()).state_dict()

    assert {name: tuple(value.shape) for name, value in state.items()} == expected
    assert len(expected) == 426
    assert sum(value.numel() for value in state.values()) == 441_018_563


def test_a_network_built_without_memory_becomes_whole_by_its_weights() -> None:
    network, batch = make_network(), make_batch(make_clips())
    with torch.device("meta"):
        copied = XttsGpt(SIZES, 0.0)

    copied.load_state_dict(network.state_dict(), strict=True, assign=True)

    assert losses(copied, batch)["mel_ce"] == losses(network, batch)["mel_ce"]


@pytest.mark.parametrize("is_fused", [False, True])
def test_contiguous_rows_equal_padded_rows_with_a_mask(is_fused: bool) -> None:
    network, clips = make_network(), make_clips(masked=(2, 5))
    expected = padded_losses(network, clips, see_stop=True)
    wanted = gradients(network, expected)
    for layer in attention_layers(network):
        layer.use_sdpa = is_fused

    found = losses(network, make_batch(clips))

    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradients(network, found), wanted, rtol=1e-6, atol=1e-9)


def test_upstream_masking_hides_the_stop_of_the_text_from_the_audio() -> None:
    network, clips = make_network(), make_clips()
    expected = padded_losses(network, clips, see_stop=False)
    wanted = gradients(network, expected)

    found = losses(network, make_batch(clips, upstream=True))

    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(gradients(network, found), wanted, rtol=1e-6, atol=1e-9)
    assert abs(found["mel_ce"] - losses(network, make_batch(clips))["mel_ce"]) > 1e-6


def test_codes_of_a_reference_from_the_clip_itself_train_nothing_in_any_row() -> None:
    clips = [make_clip(2, 6, masked=(1, 3)), make_clip(3, 9, masked=(0, 2))]

    targets = make_collate(SIZES)(clips)["audio_targets"]

    assert torch.nonzero(targets == -100).flatten().tolist() == [1, 2, 10, 11]
    assert targets[10:].tolist() == [-100, -100, *clips[1]["codes"][2:], 1025, 1025, 1025, 1025]


def test_upstream_masking_ignores_a_range_four_times_too_far_in_the_last_row_only() -> None:
    clips = [make_clip(2, 6, masked=(1, 3)), make_clip(3, 9, masked=(1, 2))]

    targets = make_collate(SIZES, upstream=True)(clips)["audio_targets"]

    assert torch.nonzero(targets == -100).flatten().tolist() == [14, 15, 16, 17]


def test_a_row_is_latents_text_and_audio_without_a_gap() -> None:
    clips = [make_clip(2, 3), make_clip(1, 1)]

    batch = make_collate(SIZES)(clips)

    first, second = clips
    assert batch["text_ids"].tolist() == [
        [261, *first["tokens"], 0],
        [261, *second["tokens"], 0, 0],
    ]
    assert batch["audio_ids"][1].tolist() == [1024, *second["codes"], 1025, 1025, 1025, 0, 0]
    assert batch["layout"][0].tolist() == list(range(5 + 4 + 7))
    assert batch["layout"][1].tolist() == [*range(5 + 3), *range(9, 14), 16, 16, 16]
    assert batch["position_mask"].sum(dim=1).tolist() == [16, 13]
    assert batch["text_index"].tolist() == [5, 6, 7, 16 + 5, 16 + 6]
    assert batch["text_targets"].tolist() == [*first["tokens"], 0, *second["tokens"], 0]
    assert batch["audio_index"].tolist() == [*range(9, 16), *range(16 + 8, 16 + 13)]
    assert len(batch["audio_targets"]) == (3 + 4) + (1 + 4)


def test_references_are_cropped_to_what_the_first_clip_wants_or_the_shortest_has() -> None:
    long, short = make_clip(2, 3, num_frames=20), make_clip(2, 3, num_frames=7)

    alone, together = make_collate(SIZES)([long]), make_collate(SIZES)([long, short])

    assert alone["reference"].shape == (1, SIZES.n_mels, 10)
    assert together["reference"].shape == (2, SIZES.n_mels, 7)
    np.testing.assert_array_equal(together["reference"][0], long["reference"][:, :7])


def test_counts_are_the_positions_of_a_row_and_its_targets() -> None:
    assert counts(make_clip(7, 9)) == {"positions": 32 + 9 + 13, "text": 8, "audio": 13}
    assert counts(make_clip(7, 9, masked=(0, 5)))["audio"] == 13


@pytest.mark.parametrize(("num_tokens", "num_codes"), [(403, 5), (5, 605)])
def test_a_clip_longer_than_the_position_tables_is_refused(num_tokens: int, num_codes: int) -> None:
    longest = make_clip(402, 604)

    with pytest.raises(DataError, match="at most (402|604)"):
        make_collate(SIZES)([make_clip(num_tokens, num_codes)])

    assert make_collate(SIZES)([longest])["layout"].shape == (1, 5 + 404 + 608)


def test_a_clip_loses_the_same_whatever_it_is_batched_with() -> None:
    network, clips = make_network(), make_clips()

    together = losses(network, make_batch(clips))["mel_ce"] * sum(
        len(c["codes"]) + 4 for c in clips
    )
    alone = sum(losses(network, make_batch([c]))["mel_ce"] * (len(c["codes"]) + 4) for c in clips)

    torch.testing.assert_close(together, alone)


def test_the_loss_weights_are_those_that_hang_on_the_model() -> None:
    network, batch = make_network(), make_batch(make_clips())
    before = losses(network, batch)

    network.loss_weights = {"text_ce": 0.02, "mel_ce": 3.0}
    after = losses(network, batch)

    torch.testing.assert_close(after["text_ce"], 2 * before["text_ce"])
    torch.testing.assert_close(after["mel_ce"], 3 * before["mel_ce"])


def test_the_share_of_right_codes_counts_the_likeliest_code_of_each_position() -> None:
    network, batch = make_network(), make_batch([make_clip(2, 2)])
    _, logits = network(*(batch[name] for name in NAMES))

    batch.tensors["audio_targets"] = logits.argmax(dim=1)
    all_right = validate(network, batch)[1]["audio_top1"]
    batch.tensors["audio_targets"][:2] = -100
    without_two = validate(network, batch)[1]["audio_top1"]

    assert all_right == 1
    torch.testing.assert_close(without_two, torch.tensor(4 / 6))


def test_codes_left_out_change_neither_the_weight_nor_the_scale_of_a_batch() -> None:
    network = make_network()
    clips = [make_clip(2, 6), make_clip(3, 9)]
    for clip in clips:
        clip["codes"][:] = 7
    whole = make_batch(clips)
    # Every target has the same loss, so that a mean over any of them is that loss.
    nn.init.zeros_(network.mel_head.weight)
    nn.init.zeros_(network.mel_head.bias)

    parts = [make_batch([clip | {"masked": np.array([1, 4], np.int32)}]) for clip in clips]
    for part in parts:
        part.totals = whole.totals
    found = torch.stack([losses(network, part)["mel_ce"] for part in parts]).sum()

    torch.testing.assert_close(found, losses(network, whole)["mel_ce"])


def test_the_share_of_right_codes_is_of_those_that_are_asked_for() -> None:
    network = make_network()
    batch = make_batch([make_clip(2, 6, masked=(0, 3))])
    _, logits = network(*(batch[name] for name in NAMES))
    right = logits.argmax(dim=1)
    right[:3] = -100
    batch.tensors["audio_targets"] = right

    assert validate(network, batch)[1]["audio_top1"] == 1


def test_a_batch_of_which_upstream_masking_leaves_nothing_costs_nothing() -> None:
    batch = make_batch([make_clip(2, 6, masked=(0, 5))], upstream=True)

    assert losses(make_network(), batch)["mel_ce"] == 0


def test_fused_attention_and_checkpointing_change_no_loss_and_no_gradient() -> None:
    plain, batch = make_network(dtype=torch.float32), make_batch(make_clips())
    changed = copy.deepcopy(plain)
    for layer in attention_layers(changed):
        layer.use_sdpa = True
    for block in blocks(changed):
        block.forward = types.MethodType(_checkpointed_forward, block)

    expected, found = losses(plain, batch), losses(changed, batch)

    assert len(attention_layers(changed)) == 2 + 1 + 2
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        gradients(changed, found), gradients(plain, expected), rtol=1e-5, atol=1e-5
    )


def test_fused_attention_gets_no_mask_so_that_the_flash_kernel_runs() -> None:
    network, batch = make_network(dtype=torch.float32), make_batch(make_clips())
    for layer in attention_layers(network):
        layer.use_sdpa = True

    with _FlashMasks() as seen:
        losses(network, batch)

    assert seen.masks == [None] * 5


def test_a_step_never_waits_for_the_device() -> None:
    network, batch = make_network(dropout=0.1), make_batch(make_clips(masked=(0, 3)))

    with _NothingReadBack():
        torch.stack(list(losses(network, batch).values())).sum().backward()
        validate(network, batch)


def test_dropout_is_drawn_from_the_seed_and_only_in_training() -> None:
    network, batch = make_network(dropout=0.3), make_batch(make_clips())

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return losses(network, batch)["mel_ce"].detach()

    assert run(1) == run(1)
    assert run(1) != run(2)
    network.eval()
    assert run(1) == run(2)


def test_dropout_reaches_embeddings_attention_and_both_residuals() -> None:
    trunk = Gpt2Trunk(layers=1, width=8, heads=2, dropout=0.25)

    parts = trunk.named_modules()
    rates = {name: part.share for name, part in parts if isinstance(part, Dropout)}

    assert rates == {"drop": 0.25, "h.0.attn.resid_dropout": 0.25, "h.0.mlp.dropout": 0.25}
    assert trunk.h[0].attn.dropout == 0.25  # type: ignore[union-attr]


@pytest.mark.parametrize("is_fused", [False, True])
def test_attention_drops_weights_out_and_keeps_their_mean(is_fused: bool) -> None:
    torch.manual_seed(0)
    layer = SelfAttention(num_heads=1)
    layer.use_sdpa = is_fused
    query = torch.zeros(1, 1, 4, 1)
    ones = torch.ones(20_000, 1, 4, 1)

    mixed = layer.attend(query.expand_as(ones), ones, ones, dropout=0.25)

    assert len(mixed.unique()) > 3
    assert abs(mixed.mean() - 1) < 0.01


def test_a_fresh_network_starts_as_the_original_does() -> None:
    torch.manual_seed(0)
    network = XttsGpt(replace(SIZES, layers=8, width=64))
    block: Any = network.gpt.h[0]

    assert abs(block.mlp.c_fc.weight.std() - 0.02) < 1e-3
    assert abs(block.mlp.c_proj.weight.std() - 0.02 / 4) < 5e-4
    assert not block.attn.c_attn.bias.any()
    assert abs(network.mel_pos_embedding.emb.weight.std() - 0.02) < 1e-3
    assert not network.conditioning_encoder.attn[0].proj_out.weight.any()  # type: ignore[union-attr]


def test_input_major_weights_multiply_from_the_right() -> None:
    layer = InputMajorLinear(2, 3)
    layer.load_state_dict(
        {"weight": torch.tensor([[1.0, 2, 3], [4, 5, 6]]), "bias": torch.tensor([0.0, 0, 10])}
    )

    assert layer(torch.tensor([[[1.0, 10.0]]])).tolist() == [[[41.0, 52.0, 73.0]]]


def test_the_conditioning_encoder_splits_heads_before_queries_keys_and_values() -> None:
    torch.manual_seed(0)
    encoder = ConditioningEncoder(replace(SIZES, width=16, heads=2)).double()
    block: Any = encoder.attn[0]
    nn.init.normal_(block.proj_out.weight)
    mel = torch.randn(2, SIZES.n_mels, 6, dtype=torch.float64)

    normed = block.norm(encoder.init(mel))
    split = block.qkv(normed).view(2, 2, 3, 8, 6)  # batch, heads, which, channels, time
    query, key, value = split[:, :, 0], split[:, :, 1], split[:, :, 2]
    weights = torch.softmax(query.transpose(-2, -1) @ key / 8**0.5, dim=-1)
    mixed = (value @ weights.transpose(-2, -1)).reshape(2, 16, 6)
    expected = normed + block.proj_out(mixed)

    torch.testing.assert_close(encoder(mel), expected.transpose(1, 2))


def attention_layers(network: nn.Module) -> list[SelfAttention]:
    return [module for module in network.modules() if isinstance(module, SelfAttention)]

"""Dropout and the attention that drops out: what stays, what is equal, and what repeats."""

import math

import pytest
import torch
from torch import Tensor

from trainer.models._layers.attention import SelfAttention
from trainer.models._layers.dropout import Dropout, dropout


def test_the_share_is_dropped_and_the_mean_stays() -> None:
    torch.manual_seed(0)
    values = torch.ones(1000, 1001)

    dropped = dropout(values, 0.1)

    kept = dropped != 0
    assert kept.float().mean() == pytest.approx(0.9, abs=1.5e-3)
    assert dropped[kept].unique().tolist() == pytest.approx([1 / 0.9], rel=1e-5)
    # Neighbours share a random word, and no two columns of a word may go together.
    quarter = kept.flatten()[: 4 * 250_000].view(-1, 4).float()
    assert torch.corrcoef(quarter.T).fill_diagonal_(0).abs().max() < 0.01


def test_the_gradient_passes_where_the_value_passed() -> None:
    values = torch.randn(7, 9, requires_grad=True)

    dropped = dropout(values, 0.5)
    dropped.backward(torch.ones_like(values))

    assert values.grad is not None
    torch.testing.assert_close(values.grad * values.detach(), dropped.detach())


def test_the_generator_decides() -> None:
    layer = Dropout(0.3)
    values = torch.randn(5, 11)
    torch.manual_seed(3)
    first, other = layer(values), layer(values)
    torch.manual_seed(3)

    assert torch.equal(layer(values), first)
    assert not torch.equal(other, first)
    assert layer.eval()(values) is values


@pytest.mark.parametrize("share", [0.0, 1.0, 1e-9, 1 - 1e-9])
def test_shares_at_the_edges(share: float) -> None:
    dropped = dropout(torch.ones(64), share)

    assert torch.isfinite(dropped).all()
    assert (dropped == 0).all() == (share > 0.5)


@pytest.mark.parametrize("length", [1, 95, 96, 97, 250])
def test_attention_in_rows_is_causal_attention(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With nothing dropped, values and gradients are those of the plain product."""
    monkeypatch.setattr("trainer.models._layers.attention.drop", lambda values, share: values)
    torch.manual_seed(0)
    layer = SelfAttention(2)
    inputs = [torch.randn(3, 2, length, 8, dtype=torch.float64) for _ in range(3)]
    weights = torch.randn(3, length, 16, dtype=torch.float64)

    def run(is_in_rows: bool) -> list[Tensor]:
        layer.use_sdpa = is_in_rows
        leaves = [value.clone().requires_grad_() for value in inputs]
        mixed = layer.attend(*leaves, is_causal=True, dropout=0.1)
        (mixed * weights).sum().backward()
        return [mixed.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    for plain, in_rows in zip(run(False), run(True), strict=True):
        torch.testing.assert_close(in_rows, plain, rtol=1e-12, atol=1e-12)
    assert layer.runs_in_rows == 1


def test_attention_in_rows_drops_out_without_bias() -> None:
    torch.manual_seed(0)
    layer = SelfAttention(1)
    layer.use_sdpa = True
    query, key = torch.randn(2, 1, 1, 200, 4).unbind()
    value = torch.eye(200)[None, None]

    weights = layer.attend(query, key, value, is_causal=True, dropout=0.5)[0]

    rows = torch.softmax(
        (query @ key.transpose(-2, -1) / math.sqrt(4))[0, 0].masked_fill(
            torch.ones(200, 200, dtype=torch.bool).triu(1), -math.inf
        ),
        dim=-1,
    )
    kept = weights != 0
    assert torch.allclose(weights[kept], 2 * rows[kept], rtol=1e-4)
    assert kept[rows > 0].float().mean() == pytest.approx(0.5, abs=0.02)

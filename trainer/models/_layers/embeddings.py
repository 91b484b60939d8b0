"""Embedding tables: token embeddings with GPT-2's initialization, and learned positions."""

from torch import Tensor, nn

_INIT_STD = 0.02  # as in GPT-2


def make_embedding(count: int, width: int) -> nn.Embedding:
    """Return a table of `count` vectors, initialized as in GPT-2."""
    embedding = nn.Embedding(count, width)
    nn.init.normal_(embedding.weight, std=_INIT_STD)
    return embedding


class Positions(nn.Module):
    """A learned table of positions, under the published key `emb.weight`."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.emb = make_embedding(count, width)

    def forward(self, values: Tensor, first: int = 0) -> Tensor:
        """Add positions to values (B, T, D), starting at position `first`."""
        return values + self.emb.weight[first : first + values.shape[1]]

"""Estimate durations with a small network that learns to align one corpus; for hours of speech.

Badlani et al. 2021, "One TTS Alignment To Rule Them All" (arXiv 2108.10447): frames and symbols
are embedded in one space, where close pairs belong together. The forward-sum loss (section 3.1)
sums over all monotonic alignments. A beta-binomial prior (3.2) favours the diagonal early in
training, and the binarization loss (3.4) sharpens the alignment later. Durations come from the best
single path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.models.fastspeech2.alignment.hmm_aligner import find_paths, normalize_groups

_TEMPERATURE = 0.005  # ten times the usual 0.0005, for a faster start
_BLANK_LOGIT = -1.0  # as in NVIDIA's code
_TEXT_WIDTH = 256
_SPACE_WIDTH = 80  # as in NVIDIA's code
# Chosen by hand for runs of about 1000 steps.
_BATCH = 8
_LEARNING_RATE = 3e-3
_WARM_UP = 50
_BINARY_FROM = 0.5
"""Share of the steps after which the binarization loss is added; chosen by hand.

Earlier, the loss would fix alignments that are still wrong.
"""

_IMPOSSIBLE = -1e4  # not -inf, which turns into NaN in the gradient of log_softmax


class AlignerNetwork(nn.Module):
    """Embed frames and symbols in one space; their distance tells how well they match."""

    def __init__(self, num_symbols: int, num_mels: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_symbols, _TEXT_WIDTH)
        self.text = nn.Sequential(
            nn.Conv1d(_TEXT_WIDTH, 2 * _TEXT_WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(2 * _TEXT_WIDTH, _SPACE_WIDTH, 1),
        )
        self.frames = nn.Sequential(
            nn.Conv1d(num_mels, 2 * num_mels, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(2 * num_mels, num_mels, 1),
            nn.ReLU(),
            nn.Conv1d(num_mels, _SPACE_WIDTH, 1),
        )

    def forward(self, mel: Tensor, tokens: Tensor, token_mask: Tensor) -> Tensor:
        """Return scores (B, T_mel, T_text): -temperature times the squared distance.

        mel: (B, T_mel, M), zero where padded. tokens, token_mask: (B, T_text).
        """
        embedded = self.embedding(tokens) * token_mask[:, :, None]
        keys = self.text(embedded.transpose(1, 2))  # (B, D, T_text)
        queries = self.frames(mel.transpose(1, 2)).transpose(1, 2)  # (B, T_mel, D)
        # |q|^2 + |k|^2 - 2 qk avoids the (B, T_mel, T_text, D) tensor of differences.
        lengths = queries.square().sum(2)[:, :, None] + keys.square().sum(1)[:, None, :]
        return -_TEMPERATURE * (lengths - 2 * queries @ keys)


@dataclass(frozen=True)
class _Batch:
    """Padded clips: mel (B, T_mel, M), tokens (B, T_text), frame and symbol counts (B,)."""

    mel: Tensor
    tokens: Tensor
    frames: Tensor
    symbols: Tensor

    @property
    def token_mask(self) -> Tensor:
        """Return a bool mask (B, T_text) that is True where valid."""
        return torch.arange(self.tokens.shape[1], device=self.mel.device) < self.symbols[:, None]


def align_clips(
    mels: Sequence[np.ndarray],
    tokens: Sequence[np.ndarray],
    groups: Sequence[int],
    progress: Callable[[str, int, int], None],
    *,
    steps: int,
    seed: int = 0,
) -> list[np.ndarray]:
    """Learn to align the clips; return the frames of each token (T_text,) int32, at least one.

    mels: (T_mel, M) natural log. tokens: (T_text,) symbol numbers. groups: speaker number of each
    clip; clips of a speaker are normalized together. Every clip needs at least as many frames as
    tokens. On a CPU the same seed gives the same durations. On a GPU the CTC loss is summed in no
    fixed order, so boundaries may differ by a frame.
    """
    if not mels:
        return []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    seen = _normalise(mels, groups)
    network = _make_network(max(int(token.max()) for token in tokens) + 1, seen[0].shape[1], seed)
    network.to(device)
    # Clips of similar length share a batch, so little of it is padding.
    order = sorted(range(len(seen)), key=lambda index: len(seen[index]))
    batches = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]

    def load(rows: Sequence[int]) -> _Batch:
        return _pad([seen[row] for row in rows], [tokens[row] for row in rows], device)

    _fit(network, load, batches, steps=steps, seed=seed, progress=progress)
    durations: dict[int, np.ndarray] = {}
    with torch.no_grad():
        for number, rows in enumerate(batches):
            progress("Aligning", number, len(batches))
            batch = load(rows)
            paths = _best_paths(_log_probabilities(network, batch), batch)
            for row, path in zip(rows, paths, strict=True):
                counts = np.bincount(path, minlength=len(tokens[row]))
                durations[row] = counts.astype(np.int32)
    progress("Aligning", len(batches), len(batches))
    return [durations[row] for row in range(len(seen))]


def _normalise(mels: Sequence[np.ndarray], groups: Sequence[int]) -> list[np.ndarray]:
    """Normalize each speaker's mel bands to mean 0 and deviation 1, (T_mel, M) float32."""
    # 12 is 104 dB: a floor, or digital silence would dominate the statistics.
    found = [np.maximum(mel, mel.max() - 12) for mel in mels]
    return normalize_groups(found, groups)


def _make_network(num_symbols: int, num_mels: int, seed: int) -> AlignerNetwork:
    """Initialize the network on the CPU without disturbing the caller's random state."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return AlignerNetwork(num_symbols, num_mels)


def _pad(mels: list[np.ndarray], tokens: list[np.ndarray], device: torch.device) -> _Batch:
    frames = torch.tensor([len(mel) for mel in mels])
    symbols = torch.tensor([len(token) for token in tokens])
    mel = nn.utils.rnn.pad_sequence([torch.tensor(mel) for mel in mels], batch_first=True)
    token = nn.utils.rnn.pad_sequence(
        [torch.from_numpy(token.astype(np.int64)) for token in tokens], batch_first=True
    )
    return _Batch(mel.to(device), token.to(device), frames.to(device), symbols.to(device))


def _fit(
    network: AlignerNetwork,
    load: Callable[[Sequence[int]], _Batch],
    batches: Sequence[Sequence[int]],
    *,
    steps: int,
    seed: int,
    progress: Callable[[str, int, int], None],
) -> None:
    """Train the network; every epoch visits the batches in a new order."""
    generator = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(network.parameters(), _LEARNING_RATE, weight_decay=1e-6)
    waiting: list[int] = []
    for step in range(steps):
        progress("Training the aligner", step, steps)
        waiting = waiting or generator.permutation(len(batches)).tolist()
        batch = load(batches[waiting.pop()])
        log_probabilities = _log_probabilities(network, batch)
        loss = _forward_sum_loss(log_probabilities, batch)
        if step >= _BINARY_FROM * steps:
            loss = loss + _binarisation_loss(log_probabilities, batch)
        decay = 0.5 + 0.5 * np.cos(np.pi * step / steps)
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * min(1.0, (step + 1) / _WARM_UP) * decay
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    progress("Training the aligner", steps, steps)


def _log_probabilities(network: AlignerNetwork, batch: _Batch) -> Tensor:
    """Return log(probability of a symbol * its prior) for every frame, (B, T_mel, T_text)."""
    mask = batch.token_mask[:, None, :]
    scores = network(batch.mel, batch.tokens, batch.token_mask).masked_fill(~mask, _IMPOSSIBLE)
    prior = log_prior(batch.frames, batch.symbols, batch.mel.shape[1], batch.tokens.shape[1])
    return (scores.log_softmax(dim=2) + prior).masked_fill(~mask, _IMPOSSIBLE)


def log_prior(frames: Tensor, symbols: Tensor, num_frames: int, num_symbols: int) -> Tensor:
    """Return the log beta-binomial prior (B, num_frames, num_symbols) of clips in a padded batch.

    frames, symbols: (B,) counts. At frame t = 1..T, symbol k = 0..N-1 has the beta-binomial
    probability with n = N - 1, a = t, b = T + 1 - t. All gamma functions then have integer
    arguments, so a table of log factorials is enough.
    """
    device = frames.device
    log_factorials = torch.lgamma(torch.arange(num_frames + num_symbols + 2, device=device) + 1.0)

    def log_gamma(whole: Tensor) -> Tensor:
        """Return log gamma, same shape; the caller masks what padding makes negative."""
        return log_factorials[(whole - 1).clamp(min=0)]

    total, last = frames[:, None, None], symbols[:, None, None] - 1
    time = torch.arange(1, num_frames + 1, device=device)[None, :, None]
    symbol = torch.arange(num_symbols, device=device)[None, None, :]
    rest = total + 1 - time
    choose = log_gamma(last + 1) - log_gamma(symbol + 1) - log_gamma(last - symbol + 1)
    above = log_gamma(symbol + time) + log_gamma(last - symbol + rest) - log_gamma(last + total + 1)
    return choose + above - (log_gamma(time) + log_gamma(rest) - log_gamma(total + 1))


def _forward_sum_loss(log_probabilities: Tensor, batch: _Batch) -> Tensor:
    """Return the negative log-likelihood of all monotonic alignments as a scalar.

    log_probabilities: (B, T_mel, T_text). This is the CTC loss with the symbols of a clip as
    classes 1, 2, 3, ..., each wanted once and in this order, and a blank with a constant score,
    averaged over symbols and clips.
    """
    padded = F.pad(log_probabilities, (1, 0), value=_BLANK_LOGIT).log_softmax(dim=2)
    places = torch.arange(1, padded.shape[2], device=padded.device).repeat(len(padded), 1)
    return F.ctc_loss(
        padded.transpose(0, 1), places, batch.frames, batch.symbols, zero_infinity=True
    )


def _binarisation_loss(log_probabilities: Tensor, batch: _Batch) -> Tensor:
    """Return the negative mean log-probability of the best path as a scalar.

    log_probabilities: (B, T_mel, T_text).
    """
    normal = log_probabilities.log_softmax(dim=2)
    paths = _best_paths(log_probabilities.detach(), batch)
    chosen = [
        normal[row, torch.arange(len(path)), torch.from_numpy(path)]
        for row, path in enumerate(paths)
    ]
    return -torch.cat(chosen).mean()


def _best_paths(log_probabilities: Tensor, batch: _Batch) -> list[np.ndarray]:
    """Return the best monotonic path (T_mel,) of each clip in (B, T_mel, T_text)."""
    emissions = log_probabilities.transpose(0, 1).cpu().numpy()
    return find_paths(emissions, batch.frames.cpu().numpy(), batch.symbols.cpu().numpy())

"""Durations without an external aligner: a small hidden Markov model per symbol, flat-started.

Each symbol is a chain of up to three states with a diagonal Gaussian over cepstra and their first
and second differences. Rounds of Viterbi alignment and re-estimation (Rabiner 1989, section V) move
the boundaries from an equal division to the audio. Clips of like length run through the dynamic
programme together, so that ten minutes of speech take seconds.
"""

from collections.abc import Callable, Sequence

import numpy as np

ROUNDS = 20
SOUND_STATES = 3
"""States of a symbol that is heard; pauses and marks get one."""

_SHORTEST_STATES = 2
_CEPSTRA = 16
_BATCH = 48
_VARIANCE_FLOOR = 0.05
_PRIOR_FRAMES = 20.0
_SETTLED = 0.002


def align_clips(
    mels: Sequence[np.ndarray],
    tokens: Sequence[np.ndarray],
    states_of: np.ndarray,
    groups: Sequence[int],
    progress: Callable[[int, int], None],
) -> list[np.ndarray]:
    """Return the frames (T_text,) int32 of each token, at least one each, for every clip.

    mels: (T_mel, M) natural log. tokens: (T_text,) symbol numbers. states_of: (V,) states of each
    symbol. groups: the speaker of each clip, normalised together. Every clip needs the frames that
    `count_frames_needed` tells.
    """
    if not mels:
        return []
    observations = _observe(mels, groups)
    chains = [_chain(token, states_of, len(mel)) for token, mel in zip(tokens, mels, strict=True)]
    paths = [_divide(len(chain[0]), mel) for chain, mel in zip(chains, mels, strict=True)]
    order = sorted(range(len(mels)), key=lambda index: len(mels[index]))
    batches = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]
    num_states = int(states_of.sum())
    for round_index in range(ROUNDS):
        progress(round_index, ROUNDS)
        model = _estimate(observations, chains, paths, num_states)
        moved = 0
        for batch in batches:
            moved += _realign(batch, observations, chains, paths, model)
        if moved < _SETTLED * sum(len(mel) for mel in mels):
            break
    progress(ROUNDS, ROUNDS)
    return [
        np.bincount(chain[1][path], minlength=len(token)).astype(np.int32)
        for chain, path, token in zip(chains, paths, tokens, strict=True)
    ]


def count_frames_needed(tokens: np.ndarray, states_of: np.ndarray) -> int:
    """Return how many frames a clip with these tokens (T_text,) needs at least."""
    return int(np.minimum(states_of[tokens], _SHORTEST_STATES).sum())


def _observe(mels: Sequence[np.ndarray], groups: Sequence[int]) -> list[np.ndarray]:
    """Turn mels (T_mel, M) into normalised cepstra with differences, (T_mel, 48) float32."""
    bands = np.arange(mels[0].shape[1]) + 0.5
    basis = np.cos(np.pi / len(bands) * bands[:, None] * np.arange(_CEPSTRA)).astype(np.float32)
    found = []
    for mel in mels:
        # Digital silence would dominate the statistics of the quiet states.
        cepstra = np.einsum("tm,mc->tc", np.maximum(mel, mel.max() - 12), basis)
        slope = np.gradient(_smooth(cepstra), axis=0) if len(mel) > 1 else np.zeros_like(cepstra)
        bend = np.gradient(_smooth(slope), axis=0) if len(mel) > 1 else np.zeros_like(cepstra)
        found.append(np.concatenate([cepstra, slope, bend], axis=1).astype(np.float32))
    numbers = np.asarray(groups)
    for group in np.unique(numbers):
        members = np.flatnonzero(numbers == group)
        joined = np.concatenate([found[index] for index in members])
        mean, deviation = joined.mean(axis=0), joined.std(axis=0) + 1e-5
        for index in members:
            found[index] = (found[index] - mean) / deviation
    return found


def _smooth(values: np.ndarray) -> np.ndarray:
    """Average each frame of (T_mel, channels) with its neighbours."""
    padded = np.pad(values, ((1, 1), (0, 0)), mode="edge")
    return (padded[:-2] + padded[1:-1] + padded[2:]) / 3


def _chain(
    tokens: np.ndarray, states_of: np.ndarray, num_frames: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the model state and the owning token of each position in a clip's chain.

    Where speech is too fast for every state, each symbol keeps its first and its last one.
    """
    whole = states_of[tokens]
    counts = whole if whole.sum() <= num_frames else np.minimum(whole, _SHORTEST_STATES)
    owner = np.repeat(np.arange(len(tokens)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    step = (whole - 1) // np.maximum(counts - 1, 1)
    first_state = (np.cumsum(states_of) - states_of)[tokens]
    return first_state[owner] + within * step[owner], owner


def _divide(num_states: int, mel: np.ndarray) -> np.ndarray:
    """Start with equal shares of the audible stretch; the first and last state take the silence."""
    loudness = mel.mean(axis=1)
    threshold = loudness.min() + 0.3 * (loudness.max() - loudness.min())
    audible = np.flatnonzero(loudness > threshold)
    start, stop = (int(audible[0]), int(audible[-1]) + 1) if len(audible) else (0, len(mel))
    if stop - start < num_states or num_states < 3:
        return np.arange(len(mel)) * num_states // len(mel)
    shares = 1 + np.arange(stop - start) * (num_states - 2) // (stop - start)
    before = np.zeros(start, np.int64)
    path = np.concatenate([before, shares, np.full(len(mel) - stop, num_states - 1)])
    path[0], path[-1] = 0, num_states - 1
    return path


def _estimate(
    observations: Sequence[np.ndarray],
    chains: Sequence[tuple[np.ndarray, np.ndarray]],
    paths: Sequence[np.ndarray],
    num_states: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit a Gaussian to the frames of each state: mean and variance (states, 48) float32."""
    width = observations[0].shape[1]
    count = np.zeros(num_states)
    total, squares = np.zeros((num_states, width)), np.zeros((num_states, width))
    for seen, chain, path in zip(observations, chains, paths, strict=True):
        states = chain[0][path]
        # Sorting and summing stretches is many times faster than adding frame by frame.
        order = np.argsort(states, kind="stable")
        ordered, sorted_states = seen[order], states[order]
        starts = np.flatnonzero(np.diff(sorted_states, prepend=-1))
        present = sorted_states[starts]
        count[present] += np.diff(np.append(starts, len(states)))
        total[present] += np.add.reduceat(ordered, starts, axis=0)
        squares[present] += np.add.reduceat(ordered**2, starts, axis=0)
    mean_of_all = total.sum(axis=0) / count.sum()
    # Rare states lean on the average of all speech.
    weight = count[:, None] + _PRIOR_FRAMES
    mean = (total + _PRIOR_FRAMES * mean_of_all) / weight
    power = (squares + _PRIOR_FRAMES * (1 + mean_of_all**2)) / weight
    return mean.astype(np.float32), np.maximum(power - mean**2, _VARIANCE_FLOOR).astype(np.float32)


def _realign(
    batch: Sequence[int],
    observations: Sequence[np.ndarray],
    chains: Sequence[tuple[np.ndarray, np.ndarray]],
    paths: list[np.ndarray],
    model: tuple[np.ndarray, np.ndarray],
) -> int:
    """Replace the batch's paths by the most likely ones; return how many frames moved."""
    lengths = np.array([len(observations[index]) for index in batch])
    widths = np.array([len(chains[index][0]) for index in batch])
    emissions = np.full((lengths.max(), len(batch), widths.max()), -1e4, np.float32)
    # One large product: many small ones wait for BLAS threads on a busy machine.
    scores = _score(np.concatenate([observations[index] for index in batch]), model)
    for row, (index, own) in enumerate(
        zip(batch, np.split(scores, np.cumsum(lengths)[:-1]), strict=True)
    ):
        emissions[: lengths[row], row, : widths[row]] = own[:, chains[index][0]]
    moved = 0
    for row, path in enumerate(find_paths(emissions, lengths, widths)):
        moved += int((path != paths[batch[row]]).sum())
        paths[batch[row]] = path
    return moved


def _score(seen: np.ndarray, model: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return the log-likelihood (frames, states) of frames (frames, 48), up to a constant."""
    mean, variance = model
    constant = -0.5 * (np.log(variance) + mean**2 / variance).sum(axis=1)
    weights = np.concatenate([-0.5 / variance, mean / variance], axis=1)
    return np.concatenate([seen**2, seen], axis=1) @ weights.T + constant


def find_paths(emissions: np.ndarray, lengths: np.ndarray, widths: np.ndarray) -> list[np.ndarray]:
    """Return each clip's best left-to-right path (T_mel,) through its chain, no state left out.

    emissions: (T_mel, B, states) log-likelihoods. lengths, widths: (B,) frames and states.
    """
    num_frames, num_clips, num_states = emissions.shape
    has_advanced = np.zeros(emissions.shape, bool)
    score = np.full((num_clips, num_states), -1e9, np.float32)
    score[:, 0] = emissions[0, :, 0]
    advanced = np.full_like(score, -1e9)
    for frame in range(1, num_frames):
        advanced[:, 1:] = score[:, :-1]
        np.greater(advanced, score, out=has_advanced[frame])
        score = np.maximum(score, advanced)
        score += emissions[frame]
    # Every clip ends in its last state at its own last frame; backwards from there.
    position = widths - 1
    path = np.zeros((num_frames, num_clips), np.int64)
    clips = np.arange(num_clips)
    for frame in range(num_frames - 1, -1, -1):
        path[frame] = position
        position = position - (has_advanced[frame, clips, position] & (frame < lengths))
    return [path[: lengths[clip], clip] for clip in range(num_clips)]

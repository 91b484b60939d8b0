"""Estimate durations with a flat-started hidden Markov model per symbol, in numpy.

Each symbol is a chain of up to three states, each with a diagonal Gaussian over cepstra and their
first and second differences. Alignment starts from an equal division of the audio; rounds of
Viterbi alignment and re-estimation (Rabiner 1989, section V) then move the boundaries. Clips of
similar length share one dynamic program, so ten minutes of speech take seconds.
"""

from collections.abc import Callable, Sequence

import numpy as np

ROUNDS = 20  # upper limit; see _SETTLED
SOUND_STATES = 3
"""States of a symbol that is heard; pauses and marks have one.

In an experiment on 10 minutes of English, three states put 97 % of the boundaries within 50 ms of
those of pocketsphinx, two states 94 %.
"""

_SHORTEST_STATES = 2  # of a symbol, in clips with too few frames for three
_CEPSTRA = 16  # the spectral envelope without the harmonics; 13 to 20 are usual in recognition
_BATCH = 48  # clips per dynamic program; chosen by hand, a trade-off of padding and Python calls
# Chosen by hand: features have variance 1, so the floor only stops a state with few frames from
# becoming so narrow that it never gains another one, and the prior counts as 0.23 s of speech.
_VARIANCE_FLOOR = 0.05
_PRIOR_FRAMES = 20.0
_SETTLED = 0.002  # share of frames that change their state in a round; below it, rounds stop


def align_clips(
    mels: Sequence[np.ndarray],
    tokens: Sequence[np.ndarray],
    states_of: np.ndarray,
    groups: Sequence[int],
    progress: Callable[[int, int], None],
) -> list[np.ndarray]:
    """Return for every clip how many frames each token lasts, (T_text,) int32, at least one.

    mels: (T_mel, M) natural log. tokens: (T_text,) symbol numbers. states_of: (V,) number of states
    of each symbol. groups: speaker number of each clip; clips of a speaker are normalized together.
    Every clip needs at least as many frames as `count_frames_needed` returns.
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
    """Return the smallest number of frames that a clip with these tokens (T_text,) can have."""
    return int(np.minimum(states_of[tokens], _SHORTEST_STATES).sum())


def _observe(mels: Sequence[np.ndarray], groups: Sequence[int]) -> list[np.ndarray]:
    """Turn mels (T_mel, M) into normalized cepstra with differences, (T_mel, 48) float32."""
    # Rows of a type-II discrete cosine transform; its scale does not matter after normalization.
    bands = np.arange(mels[0].shape[1]) + 0.5
    basis = np.cos(np.pi / len(bands) * bands[:, None] * np.arange(_CEPSTRA)).astype(np.float32)
    found = []
    for mel in mels:
        # Without a floor, digital silence would dominate the statistics of the quiet states. The
        # mel is the natural logarithm of a magnitude, so 12 is 104 dB, more than speech spans.
        cepstra = np.einsum("tm,mc->tc", np.maximum(mel, mel.max() - 12), basis)
        slope = np.gradient(_smooth(cepstra), axis=0) if len(mel) > 1 else np.zeros_like(cepstra)
        bend = np.gradient(_smooth(slope), axis=0) if len(mel) > 1 else np.zeros_like(cepstra)
        found.append(np.concatenate([cepstra, slope, bend], axis=1).astype(np.float32))
    return normalize_groups(found, groups)


def normalize_groups(values: Sequence[np.ndarray], groups: Sequence[int]) -> list[np.ndarray]:
    """Normalize each group's channels (T_mel, channels) to mean 0 and deviation 1, in float32."""
    found = list(values)
    numbers = np.asarray(groups)
    for group in np.unique(numbers):
        members = np.flatnonzero(numbers == group)
        joined = np.concatenate([found[index] for index in members])
        mean, deviation = joined.mean(axis=0), joined.std(axis=0) + 1e-5
        for index in members:
            found[index] = ((found[index] - mean) / deviation).astype(np.float32)
    return found


def _smooth(values: np.ndarray) -> np.ndarray:
    """Average each frame of (T_mel, channels) with its two neighbours."""
    padded = np.pad(values, ((1, 1), (0, 0)), mode="edge")
    return (padded[:-2] + padded[1:-1] + padded[2:]) / 3


def _chain(
    tokens: np.ndarray, states_of: np.ndarray, num_frames: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the model state and the token, both (states,), of each position in a clip's chain.

    If a clip is too short for all states, each symbol keeps only its first and its last one.
    """
    whole = states_of[tokens]
    counts = whole if whole.sum() <= num_frames else np.minimum(whole, _SHORTEST_STATES)
    owner = np.repeat(np.arange(len(tokens)), counts)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    step = (whole - 1) // np.maximum(counts - 1, 1)
    first_state = (np.cumsum(states_of) - states_of)[tokens]
    return first_state[owner] + within * step[owner], owner


def _divide(num_states: int, mel: np.ndarray) -> np.ndarray:
    """Divide the audible part equally, (T_mel,); first and last state take the silence around it.

    mel: (T_mel, M).
    """
    loudness = mel.mean(axis=1)
    # Chosen by hand. The threshold only has to find a rough start and end of the speech.
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
    """Fit a Gaussian to the frames of each state; return means and variances (states, 48)."""
    width = observations[0].shape[1]
    count = np.zeros(num_states)
    total, squares = np.zeros((num_states, width)), np.zeros((num_states, width))
    for seen, chain, path in zip(observations, chains, paths, strict=True):
        states = chain[0][path]
        # Sorting frames by state and summing runs is much faster than np.add.at.
        order = np.argsort(states, kind="stable")
        ordered, sorted_states = seen[order], states[order]
        starts = np.flatnonzero(np.diff(sorted_states, prepend=-1))
        present = sorted_states[starts]
        count[present] += np.diff(np.append(starts, len(states)))
        total[present] += np.add.reduceat(ordered, starts, axis=0)
        squares[present] += np.add.reduceat(ordered**2, starts, axis=0)
    mean_of_all = total.sum(axis=0) / count.sum()
    # States with few frames are pulled towards the average of all speech, whose variance is 1.
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
    """Replace the batch's paths with the most likely ones; return how many frames changed state."""
    lengths = np.array([len(observations[index]) for index in batch])
    widths = np.array([len(chains[index][0]) for index in batch])
    emissions = np.full((lengths.max(), len(batch), widths.max()), -1e4, np.float32)
    # One large matrix product, because many small ones wait for BLAS threads on a busy machine.
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
    """Return log-likelihoods (frames, states) of frames (frames, 48), up to a constant.

    The square is expanded, so that one matrix product scores all frames against all states.
    """
    mean, variance = model
    constant = -0.5 * (np.log(variance) + mean**2 / variance).sum(axis=1)
    weights = np.concatenate([-0.5 / variance, mean / variance], axis=1)
    return np.concatenate([seen**2, seen], axis=1) @ weights.T + constant


def find_paths(emissions: np.ndarray, lengths: np.ndarray, widths: np.ndarray) -> list[np.ndarray]:
    """Return each clip's best left-to-right path (T_mel,) that visits every state of its chain.

    emissions: (T_mel, B, states) log-likelihoods. lengths, widths: (B,) number of frames and
    states.
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
    # Trace back: every clip ends in its last state at its own last frame.
    position = widths - 1
    path = np.zeros((num_frames, num_clips), np.int64)
    clips = np.arange(num_clips)
    for frame in range(num_frames - 1, -1, -1):
        path[frame] = position
        position = position - (has_advanced[frame, clips, position] & (frame < lengths))
    return [path[: lengths[clip], clip] for clip in range(num_clips)]

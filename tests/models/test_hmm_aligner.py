"""The aligner finds boundaries that are known because the test made them."""

import numpy as np
import pytest

from trainer.models.fastspeech2.alignment.hmm_aligner import align_clips, count_frames_needed

NUM_SYMBOLS = 12
STATES = np.array([1] + [3] * (NUM_SYMBOLS - 1))


def make_clips(
    num_clips: int, shortest: int = 4
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Return mels, tokens and true durations: each symbol has its own spectrum; 0 is silence."""
    generator = np.random.default_rng(7)
    spectra = generator.normal(-5, 2, (NUM_SYMBOLS, 80))
    spectra[0] = -11
    mels, tokens, durations = [], [], []
    for _ in range(num_clips):
        token = np.concatenate([[0], generator.integers(1, NUM_SYMBOLS, 14), [0]]).astype(np.int32)
        duration = generator.integers(shortest, 14, len(token))
        frames = np.repeat(spectra[token], duration, axis=0)
        mels.append((frames + generator.normal(0, 0.5, frames.shape)).astype(np.float32))
        tokens.append(token)
        durations.append(duration)
    return mels, tokens, durations


def align(mels: list[np.ndarray], tokens: list[np.ndarray]) -> list[np.ndarray]:
    return align_clips(mels, tokens, STATES, [0] * len(mels), lambda done, total: None)


def test_boundaries_are_found_from_a_flat_start() -> None:
    mels, tokens, durations = make_clips(30)

    found = align(mels, tokens)

    offsets = np.concatenate(
        [np.cumsum(a)[:-1] - np.cumsum(b)[:-1] for a, b in zip(found, durations, strict=True)]
    )
    assert np.mean(np.abs(offsets) <= 2) > 0.95


def test_every_token_gets_a_frame_and_every_frame_a_token() -> None:
    mels, tokens, _ = make_clips(5)

    found = align(mels, tokens)

    for mel, token, duration in zip(mels, tokens, found, strict=True):
        assert duration.shape == token.shape
        assert duration.min() >= 1
        assert duration.sum() == len(mel)


def test_speech_too_fast_for_every_state_is_still_aligned() -> None:
    mels, tokens, _ = make_clips(8)
    needed = count_frames_needed(tokens[0], STATES)
    mels[0] = mels[0][:needed]

    found = align(mels, tokens)

    assert needed == 2 + 14 * 2
    assert found[0].sum() == needed
    assert found[0].min() >= 1


def test_alignment_is_deterministic() -> None:
    mels, tokens, _ = make_clips(6)

    first, second = align(mels, tokens), align(mels, tokens)

    for duration, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(duration, other)


def test_a_louder_speaker_is_normalised_apart() -> None:
    mels, tokens, durations = make_clips(20)
    mels = [mel + 4 * (index % 2) for index, mel in enumerate(mels)]
    groups = [index % 2 for index in range(20)]

    found = align_clips(mels, tokens, STATES, groups, lambda done, total: None)

    offsets = np.concatenate(
        [np.cumsum(a)[:-1] - np.cumsum(b)[:-1] for a, b in zip(found, durations, strict=True)]
    )
    assert np.mean(np.abs(offsets) <= 2) > 0.9


def test_progress_ends_at_its_total() -> None:
    mels, tokens, _ = make_clips(2)
    seen: list[tuple[int, int]] = []

    align_clips(mels, tokens, STATES, [0, 0], lambda done, total: seen.append((done, total)))

    assert seen[0][0] == 0
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("num_frames", [1, 2])
def test_a_single_token_takes_all_frames(num_frames: int) -> None:
    mel = np.linspace(-3, -9, 80 * num_frames, dtype=np.float32).reshape(num_frames, 80)

    (found,) = align_clips([mel], [np.array([0])], STATES, [0], lambda done, total: None)

    assert found.tolist() == [num_frames]

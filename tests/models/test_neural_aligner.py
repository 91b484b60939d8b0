"""The neural aligner learns boundaries that are known because the test made them."""

import numpy as np
import pytest
import torch
from scipy.stats import betabinom

from tests.models.test_hmm_aligner import make_clips
from trainer.core.errors import StopRequested
from trainer.core.types import Clip
from trainer.models.fastspeech2 import Options
from trainer.models.fastspeech2.alignment.neural_aligner import (
    AlignerNetwork,
    align_clips,
    log_prior,
)
from trainer.models.fastspeech2.training.survey import survey


def ignore(phase: str, done: int, total: int) -> None:
    """Take progress without a word."""


def test_boundaries_are_learned() -> None:
    mels, tokens, durations = make_clips(24)

    found = align_clips(mels, tokens, [0] * len(mels), ignore, steps=100)

    offsets = np.concatenate(
        [np.cumsum(a)[:-1] - np.cumsum(b)[:-1] for a, b in zip(found, durations, strict=True)]
    )
    # One boundary in eleven lies between two equal symbols, where nothing marks it.
    assert np.mean(np.abs(offsets) <= 2) > 0.8


def test_every_token_gets_a_frame_and_every_frame_a_token() -> None:
    mels, tokens, _ = make_clips(5)
    mels[0] = mels[0][: len(tokens[0])]

    found = align_clips(mels, tokens, [0, 0, 1, 1, 1], ignore, steps=4)

    for mel, token, duration in zip(mels, tokens, found, strict=True):
        assert duration.shape == token.shape
        assert duration.min() >= 1
        assert duration.sum() == len(mel)
    assert found[0].tolist() == [1] * len(tokens[0])


def test_a_seed_decides_the_durations_and_no_other_random_number_moves() -> None:
    mels, tokens, _ = make_clips(9)
    torch.manual_seed(1)
    before = torch.get_rng_state()

    first = align_clips(mels, tokens, [0] * 9, ignore, steps=5)
    torch.manual_seed(2)
    second = align_clips(mels, tokens, [0] * 9, ignore, steps=5)
    torch.manual_seed(1)
    other = align_clips(mels, tokens, [0] * 9, ignore, steps=5, seed=3)

    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(np.concatenate(first), np.concatenate(second))
    assert not np.array_equal(np.concatenate(first), np.concatenate(other))


def test_a_louder_speaker_is_normalised_apart() -> None:
    mels, tokens, _ = make_clips(8)
    groups = [index % 2 for index in range(8)]
    louder = [mel + 4 * group for mel, group in zip(mels, groups, strict=True)]

    same = align_clips(mels, tokens, groups, ignore, steps=5)
    found = align_clips(louder, tokens, groups, ignore, steps=5)

    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(same))


def test_a_stop_is_obeyed_at_the_next_step() -> None:
    mels, tokens, _ = make_clips(2)
    seen = []

    def stop_at_third(phase: str, done: int, total: int) -> None:
        seen.append((phase, done, total))
        if done == 3:
            raise StopRequested("Stopped.")

    with pytest.raises(StopRequested):
        align_clips(mels, tokens, [0, 0], stop_at_third, steps=50)

    assert seen == [("Training the aligner", done, 50) for done in range(4)]


def test_scores_are_distances_and_padding_changes_none() -> None:
    torch.manual_seed(0)
    network = AlignerNetwork(6, 80).double()
    mel, tokens = torch.randn(1, 7, 80).double(), torch.tensor([[1, 2, 5]])
    longer_mel = torch.nn.functional.pad(mel, (0, 0, 0, 4))
    longer_tokens = torch.tensor([[1, 2, 5, 0, 0]])

    alone = network(mel, tokens, torch.ones(1, 3, dtype=torch.bool))
    padded = network(longer_mel, longer_tokens, longer_tokens > 0)

    keys = network.text(network.embedding(tokens).transpose(1, 2)).transpose(1, 2)
    queries = network.frames(mel.transpose(1, 2)).transpose(1, 2)
    torch.testing.assert_close(alone, -0.005 * torch.cdist(queries, keys).square())
    torch.testing.assert_close(padded[:, :7, :3], alone)


def test_the_prior_is_the_beta_binomial_of_each_clip() -> None:
    frames, symbols = torch.tensor([9, 6]), torch.tensor([4, 2])

    found = log_prior(frames, symbols, 9, 4)

    for row, (total, width) in enumerate([(9, 4), (6, 2)]):
        time = np.arange(1, total + 1)[:, None]
        expected = betabinom.logpmf(np.arange(width), width - 1, time, total + 1 - time)
        np.testing.assert_allclose(found[row, :total, :width].numpy(), expected, atol=1e-5)


def test_a_survey_takes_its_durations_from_the_chosen_aligner() -> None:
    mels, _, _ = make_clips(2)
    clips = [
        Clip(name, "", "abba cab", "ann", "en", 1.0, 22050, "train", "train.csv", 2)
        for name in ("one", "two")
    ]
    features = {
        clip.id: {"mel": mel, "f0": np.ones(len(mel)), "energy": np.ones(len(mel))}
        for clip, mel in zip(clips, mels, strict=True)
    }
    phases = []

    corpus = survey(
        features,
        clips,
        Options(aligner="neural", aligner_steps=3),
        None,
        lambda phase, done, total: phases.append((phase, total)),
    )

    assert ("Training the aligner", 3) in phases
    assert [values["durations"].sum() for values in corpus.features.values()] == [
        len(mel) for mel in mels
    ]

"""Generation with XTTS: the cache, the sampling filters, streaming, the vocoder's vectors."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from trainer.core.errors import ConfigError, DataError
from trainer.models._layers.gpt2 import Gpt2Trunk, KeyValueCache
from trainer.models.xtts.inference.generation import (
    Sampling,
    adjust,
    choose,
    draw,
    generate,
    stream,
)
from trainer.models.xtts.network.gpt import XttsGpt
from trainer.models.xtts.network.sizes import TINY
from trainer.models.xtts.training.batches import make_collate

SIZES = replace(
    TINY.gpt,
    width=32,
    num_text_tokens=270,
    max_audio_tokens=40,
    n_mels=8,
    num_latents=5,
    conditioning_layers=1,
)
GREEDY = Sampling(do_sample=False)
TOKENS = torch.tensor([7, 31, 5, 99])
OFF = Sampling(temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.0)


def make_network() -> XttsGpt:
    torch.manual_seed(5)
    network = XttsGpt(SIZES, dropout=0.2)
    with torch.no_grad():
        for value in network.parameters():
            value.add_(0.2 * torch.randn_like(value))
    return network.double().eval()


def make_latents() -> Tensor:
    torch.manual_seed(6)
    return torch.randn(1, SIZES.num_latents, SIZES.width, dtype=torch.float64)


@torch.no_grad()
def generate_without_cache(network: XttsGpt, latents: Tensor, count: int) -> list[int]:
    """Run the whole row again for every code, with the penalty written out."""
    text = torch.tensor([[SIZES.start_text, *TOKENS.tolist(), SIZES.stop_text]])
    embedded = network.text_embedding(text) + network.text_pos_embedding.emb.weight[: text.shape[1]]
    codes = [SIZES.start_audio]
    while len(codes) <= count and codes[-1] != SIZES.stop_audio:
        audio = network.mel_embedding(torch.tensor([codes]))
        audio = audio + network.mel_pos_embedding.emb.weight[: len(codes)]
        hidden = network.gpt(torch.cat([latents, embedded, audio], dim=1))
        logits = network.mel_head(network.final_norm(hidden[0, -1]))
        for code in {1, *codes}:
            logits[code] = logits[code] * 5 if logits[code] < 0 else logits[code] / 5
        codes.append(int(logits.argmax()))
    return codes[1:]


@pytest.mark.parametrize("is_fused", [False, True])
def test_generation_with_the_cache_equals_generation_without_it(is_fused: bool) -> None:
    network, latents = make_network(), make_latents()
    expected = generate_without_cache(network, latents, 20)
    for layer in network.modules():
        if hasattr(layer, "use_sdpa"):
            layer.use_sdpa = is_fused  # type: ignore[assignment]

    found = generate(network, latents, TOKENS, GREEDY, seed=0, max_codes=20)

    assert found.codes.tolist() == expected
    assert len(set(expected)) > 10
    assert not found.stopped


def test_the_vocoder_hears_the_hidden_vectors_of_training() -> None:
    network, latents = make_network(), make_latents()
    found = generate(network, latents, TOKENS, Sampling(), seed=1, max_codes=12)
    clip = {
        "tokens": TOKENS.numpy(),
        "codes": found.codes.numpy(),
        "reference": torch.zeros(SIZES.n_mels, 4).numpy(),
        "reference_frames": torch.tensor(4).numpy(),
        "masked": torch.tensor([0, 0]).numpy(),
    }
    batch = make_collate(SIZES)([clip])
    heard: list[Tensor] = []
    network.condition = lambda mel: latents  # type: ignore[method-assign]
    network.mel_head.register_forward_pre_hook(lambda layer, args: heard.append(args[0]))

    second_pass = network.audio_latents(latents, TOKENS, found.codes)
    names = ("text_ids", "audio_ids", "layout", "text_index", "audio_index", "reference")
    network(*(batch[name] for name in names))

    assert second_pass.shape == (len(found.codes), SIZES.width)
    torch.testing.assert_close(second_pass, heard[0][: len(found.codes)])
    torch.testing.assert_close(second_pass, found.latents[: len(found.codes)])


def test_generation_ends_at_the_stop_code_which_is_heard_but_no_code() -> None:
    network, latents = make_network(), make_latents()
    codes = generate(network, latents, TOKENS, GREEDY, seed=0, max_codes=6).codes
    # Let the code drawn fourth mean stop.
    network.sizes = replace(SIZES, stop_audio=int(codes[3]))

    found = generate(network, latents, TOKENS, GREEDY, seed=0)

    assert found.stopped
    assert found.codes.tolist() == codes[:3].tolist()
    assert found.latents.shape == (4, SIZES.width)
    given = torch.cat([found.codes, codes[3:4]])
    torch.testing.assert_close(found.latents, network.audio_latents(latents, TOKENS, given))
    assert list(stream(network, latents, TOKENS, GREEDY, seed=0)) == codes[:3].tolist()


def test_generation_that_never_stops_ends_three_codes_before_the_limit() -> None:
    network = make_network()
    with torch.no_grad():
        network.mel_head.bias[SIZES.stop_audio] = -1e9

    found = generate(network, make_latents(), TOKENS, Sampling(), seed=0)

    assert not found.stopped
    assert len(found.codes) == SIZES.max_audio_tokens - 3


def test_more_codes_than_positions_are_never_drawn() -> None:
    network = make_network()
    with torch.no_grad():
        network.mel_head.bias[SIZES.stop_audio] = -1e9

    found = generate(network, make_latents(), TOKENS, Sampling(), seed=0, max_codes=1000)

    assert len(found.codes) == SIZES.audio_positions


def test_a_seed_draws_the_same_codes_and_leaves_the_global_random_state_alone() -> None:
    network, latents = make_network(), make_latents()
    before = torch.get_rng_state()

    first = generate(network, latents, TOKENS, Sampling(), seed=4, max_codes=8)
    again = generate(network, latents, TOKENS, Sampling(), seed=4, max_codes=8)
    other = generate(network, latents, TOKENS, Sampling(), seed=5, max_codes=8)

    assert torch.equal(first.codes, again.codes)
    assert not torch.equal(first.codes, other.codes)
    assert torch.equal(before, torch.get_rng_state())


def test_streamed_codes_come_before_the_rest_is_drawn() -> None:
    network, latents = make_network(), make_latents()
    calls: list[int] = []
    network.mel_head.register_forward_hook(lambda layer, args, output: calls.append(1))
    whole = generate(network, latents, TOKENS, GREEDY, seed=0, max_codes=9).codes.tolist()
    calls.clear()

    codes = stream(network, latents, TOKENS, GREEDY, seed=0, max_codes=9)
    first_two = [next(codes), next(codes)]

    assert len(calls) == 2
    assert first_two + list(codes) == whole


def test_generation_drops_nothing_out_even_while_training() -> None:
    network, latents = make_network(), make_latents()
    expected = generate(network, latents, TOKENS, GREEDY, seed=0, max_codes=9)

    network.train()
    found = generate(network, latents, TOKENS, GREEDY, seed=0, max_codes=9)

    assert torch.equal(found.latents, expected.latents)
    assert not found.latents.requires_grad


def test_a_text_longer_than_the_position_table_is_refused() -> None:
    tokens = torch.zeros(403, dtype=torch.long)

    with pytest.raises(DataError, match="403 tokens; XTTS accepts at most 402. Split"):
        next(draw(make_network(), make_latents(), tokens, GREEDY, seed=0))


def test_a_filled_cache_takes_one_position_at_a_time() -> None:
    trunk, cache = Gpt2Trunk(layers=1, width=8, heads=2), KeyValueCache(capacity=9)
    trunk.extend(torch.zeros(1, 3, 8), cache)

    with pytest.raises(ValueError, match="expected 1"):
        trunk.extend(torch.zeros(1, 2, 8), cache)


def test_repetition_divides_positive_and_multiplies_negative_logits() -> None:
    logits = torch.tensor([3.0, -3.0, 3.0, -3.0])
    seen = torch.tensor([True, True, False, False])

    scores = adjust(logits, seen, replace(OFF, repetition_penalty=2.0))

    assert scores.tolist() == [1.5, -6.0, 3.0, -3.0]


def test_temperature_divides_logits_after_the_penalty() -> None:
    seen = torch.tensor([True, False])

    scores = adjust(
        torch.tensor([4.0, 1.0]), seen, replace(OFF, repetition_penalty=2.0, temperature=0.5)
    )

    assert scores.tolist() == [4.0, 2.0]


def test_top_k_keeps_the_likeliest_codes() -> None:
    scores = adjust(
        torch.tensor([1.0, 4.0, 2.0, 3.0]), torch.zeros(4).bool(), replace(OFF, top_k=2)
    )

    assert scores.tolist() == [-torch.inf, 4.0, -torch.inf, 3.0]


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.3, [False, True, False, False]),
        (0.45, [False, True, False, False]),
        (0.6, [False, True, False, True]),
        (0.9, [True, True, False, True]),
        (0.97, [True, True, True, True]),
    ],
)
def test_top_p_keeps_the_fewest_codes_that_reach_it(top_p: float, kept: list[bool]) -> None:
    probabilities = torch.tensor([0.15, 0.5, 0.05, 0.3])

    scores = adjust(probabilities.log(), torch.zeros(4).bool(), replace(OFF, top_p=top_p))

    assert (scores > -torch.inf).tolist() == kept


def test_top_p_looks_at_what_top_k_has_left() -> None:
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.1])

    scores = adjust(probabilities.log(), torch.zeros(4).bool(), replace(OFF, top_k=2, top_p=0.55))

    # Of 0.4 and 0.3 the first alone is 0.571 of the sum.
    assert (scores > -torch.inf).tolist() == [True, False, False, False]


def test_greedy_choice_knows_only_the_repetition_penalty() -> None:
    logits, seen = torch.tensor([3.0, 2.0]), torch.tensor([True, False])

    scores = adjust(logits, seen, Sampling(do_sample=False, repetition_penalty=3.0, top_k=1))

    assert scores.tolist() == [1.0, 2.0]
    assert choose(scores, GREEDY, torch.Generator()).tolist() == [1]


def test_codes_are_drawn_as_often_as_they_are_likely() -> None:
    noise = torch.Generator().manual_seed(0)
    scores = torch.tensor([0.6, 0.3, 0.1, 0.0]).log()

    drawn = torch.cat([choose(scores, OFF, noise) for _ in range(4000)])

    shares = torch.bincount(drawn, minlength=4) / 4000
    torch.testing.assert_close(shares, torch.tensor([0.6, 0.3, 0.1, 0.0]), rtol=0, atol=0.03)
    assert shares[3] == 0


def test_impossible_settings_are_all_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Sampling(temperature=0.0, top_k=-1, top_p=1.5, repetition_penalty=0.0)

    assert len(caught.value.problems) == 4

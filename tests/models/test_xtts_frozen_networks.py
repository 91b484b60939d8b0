"""The frozen networks of XTTS: what comes out, and that only weights of their shapes go in."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torchaudio.functional import melscale_fbanks
from torchaudio.transforms import MelSpectrogram

from trainer.core.errors import CheckpointError, DataError
from trainer.data.audio.audio_io import load_audio
from trainer.models.xtts.network.dvae import dvae_sizes, load_dvae, random_dvae_state
from trainer.models.xtts.network.mel import conditioning_mel, dvae_mel
from trainer.models.xtts.network.sizes import TINY, DvaeSizes, SpeakerSizes, VocoderSizes
from trainer.models.xtts.network.speaker_encoder import (
    SpeakerEncoder,
    load_speaker_encoder,
    random_speaker_state,
    speaker_sizes,
)
from trainer.models.xtts.network.vocoder import (
    XttsVocoder,
    load_vocoder,
    random_vocoder_state,
    vocoder_sizes,
)

State = dict[str, Tensor]

RATE = 22050
DEMO_CLIPS = Path(__file__).parent.parent.parent / "assets" / "demo" / "clips"
FROZEN: dict[str, tuple[Any, Callable[..., State], Callable[..., Any], str]] = {
    "dvae": (TINY.dvae, random_dvae_state, load_dvae, "encoder.2.net.4.bias"),
    "vocoder": (
        TINY.vocoder,
        random_vocoder_state,
        load_vocoder,
        "waveform_decoder.conds.1.weight",
    ),
    "speaker": (
        TINY.speaker,
        random_speaker_state,
        load_speaker_encoder,
        "speaker_encoder.layer2.0.downsample.0.weight",
    ),
}
"""Sizes, the way to draw and to load the weights, and the name of one of them."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=seeded(seed)) * 0.1


def direct_mel(wave: Tensor, n_fft: int) -> Tensor:
    """Return the log-mel (M, T_mel) of a wave (T_wav,), frame by frame and in double precision."""
    margin = n_fft // 2
    padded = torch.nn.functional.pad(wave.double()[None], (margin, margin), mode="reflect")[0]
    window = torch.zeros(n_fft, dtype=torch.float64)
    start = (n_fft - 1024) // 2
    turns = torch.arange(1024, dtype=torch.float64) / 1024
    window[start : start + 1024] = 0.5 - 0.5 * torch.cos(2 * math.pi * turns)
    frames = padded.unfold(0, n_fft, 256) * window
    power = torch.fft.rfft(frames).abs().square()
    filters = melscale_fbanks(margin + 1, 0.0, 8000.0, 80, RATE, norm="slaney", mel_scale="htk")
    return (power @ filters.double()).clamp(min=1e-5).log().t()


@pytest.mark.parametrize(("front_end", "n_fft"), [(dvae_mel, 1024), (conditioning_mel, 2048)])
def test_a_mel_equals_a_direct_computation(
    front_end: Callable[[Tensor, Tensor], Tensor], n_fft: int
) -> None:
    wave = noise(2, 256 * 10 + 100)
    mel_stats = torch.linspace(2, 5, 80)

    found = front_end(wave, mel_stats)

    assert found.shape == (2, 80, 11)
    assert found.dtype == torch.float32
    for row in range(2):
        expected = direct_mel(wave[row], n_fft) / mel_stats[:, None]
        torch.testing.assert_close(found[row].double(), expected, atol=1e-5, rtol=1e-5)


def test_audio_without_a_mel_is_refused() -> None:
    with pytest.raises(DataError, match="more than 1024"):
        conditioning_mel(noise(1, 1024), torch.ones(80))


def test_a_mel_made_in_inference_mode_does_not_spoil_later_training() -> None:
    with torch.inference_mode():
        conditioning_mel(noise(1, 3000), torch.ones(80))
    wave = noise(1, 3000).requires_grad_()

    conditioning_mel(wave, torch.ones(80)).sum().backward()

    assert wave.grad is not None
    assert wave.grad.abs().sum() > 0


@pytest.mark.parametrize("frames", [1, 4, 5, 8, 9, 87])
def test_four_frames_share_a_code(frames: int) -> None:
    dvae = load_dvae(random_dvae_state(TINY.dvae, seeded()), TINY.dvae)

    codes = dvae.encode(noise(3, 80, frames))

    assert codes.shape == (3, math.ceil(frames / 4))
    assert codes.dtype == torch.int64
    assert codes.min() >= 0
    assert codes.max() < 1024


def test_a_code_is_the_nearest_entry() -> None:
    dvae = load_dvae(random_dvae_state(TINY.dvae, seeded()), TINY.dvae)
    mel = noise(1, 80, 40)

    codes = dvae.encode(mel)

    distances = torch.cdist(dvae.encoder(mel)[0].t().double(), dvae.codebook.embed.t().double())
    assert torch.equal(codes[0], distances.argmin(1))


@pytest.mark.parametrize("level", [1.0, 5.0])
def test_codes_drawn_at_random_tell_speech_apart(level: float) -> None:
    clips = sorted(DEMO_CLIPS.glob("*/*.ogg"))[::12]
    dvae = load_dvae(random_dvae_state(TINY.dvae, seeded()), TINY.dvae)
    mel_stats = torch.full((80,), level)

    waves = [torch.from_numpy(load_audio(clip, RATE))[None] for clip in clips]
    codes = torch.cat([dvae.encode(dvae_mel(wave, mel_stats))[0] for wave in waves])

    shares = torch.bincount(codes, minlength=1024) / len(codes)
    bits = -(shares * shares.clamp(min=1e-9).log2()).sum()
    assert bits > 6


def test_a_latent_becomes_a_thousand_samples() -> None:
    vocoder = load_vocoder(random_vocoder_state(TINY.vocoder, seeded()), TINY.vocoder)
    speakers = torch.nn.functional.normalize(noise(2, 32, 1), dim=1)

    audio = vocoder(noise(2, 10, 64) * 10, speakers)

    assert audio.shape == (2, int(40 * 24000 / 22050) * 256)
    assert 0.003 < audio.std() < 0.5
    assert audio.abs().max() < 1


def test_the_speaker_changes_the_audio() -> None:
    vocoder = load_vocoder(random_vocoder_state(TINY.vocoder, seeded()), TINY.vocoder)
    latents = noise(1, 5, 64).expand(2, 5, 64)
    speakers = torch.nn.functional.normalize(noise(2, 32, 1), dim=1)

    first, second = vocoder(latents, speakers)

    assert (first - second).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("lengths", "directions"),
    [
        ("parametrizations.weight.original0", "parametrizations.weight.original1"),
        ("weight_g", "weight_v"),
    ],
)
def test_both_spellings_of_weight_norm_are_the_same_vocoder(lengths: str, directions: str) -> None:
    torch.manual_seed(0)
    normed = XttsVocoder(TINY.vocoder).eval()
    for name, module in list(normed.named_modules()):
        if ".ups." in name or ".convs" in name and isinstance(module, nn.Conv1d):
            weight_norm(module)
    for name, parameter in normed.named_parameters():
        parameter.data *= 1.5 if name.endswith("original0") else 1.0
    latents, speakers = noise(1, 3, 64), noise(1, 32, 1)
    state = {
        name.replace("parametrizations.weight.original0", lengths).replace(
            "parametrizations.weight.original1", directions
        ): value
        for name, value in normed.state_dict().items()
    }

    found = load_vocoder(state, TINY.vocoder)(latents, speakers)

    assert sum(name.endswith(lengths) for name in state) == 4 + 12 * 6
    torch.testing.assert_close(found, normed(latents, speakers), atol=1e-6, rtol=1e-4)


def test_the_drawn_vocoder_has_the_published_pairs() -> None:
    state = random_vocoder_state(TINY.vocoder, seeded())

    pair = "waveform_decoder.ups.0.parametrizations.weight.original"
    assert state[pair + "0"].shape == (32, 1, 1)
    assert state[pair + "1"].shape == (32, 16, 16)
    assert "waveform_decoder.conv_pre.weight" in state
    assert "waveform_decoder.conv_post.bias" not in state


def test_half_a_pair_of_weight_norm_is_named() -> None:
    state = random_vocoder_state(TINY.vocoder, seeded())
    del state["waveform_decoder.ups.1.parametrizations.weight.original0"]

    with pytest.raises(CheckpointError, match=r"missing: waveform_decoder\.ups\.1\.weight"):
        load_vocoder(state, TINY.vocoder)


def test_a_speaker_embedding_has_the_length_one() -> None:
    encoder = load_speaker_encoder(random_speaker_state(TINY.speaker, seeded()), TINY.speaker)

    found = encoder(noise(2, 8000))

    assert found.shape == (2, 32)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(2))
    assert (found[0] - found[1]).abs().max() > 1e-4


def test_the_speaker_encoder_hears_the_published_mel() -> None:
    encoder = SpeakerEncoder(SpeakerSizes())
    wave = noise(1, 4000)
    published = MelSpectrogram(
        16000, 512, 400, 160, n_mels=64, window_fn=torch.hamming_window, power=2.0
    )

    found = encoder.torch_spec(wave)

    emphasised = wave - 0.97 * torch.cat([wave[:, 1:2], wave[:, :-1]], dim=1)
    torch.testing.assert_close(found, published(emphasised), atol=1e-5, rtol=1e-4)


def test_too_little_audio_tells_no_voice() -> None:
    encoder = load_speaker_encoder(random_speaker_state(TINY.speaker, seeded()), TINY.speaker)

    with pytest.raises(DataError, match="more than 256"):
        encoder(noise(1, 256))


@pytest.mark.parametrize("name", FROZEN)
def test_a_frozen_network_never_trains(name: str) -> None:
    sizes, draw, load, _ = FROZEN[name]

    network = load(draw(sizes, seeded()), sizes)

    assert not any(module.training for module in network.modules())
    assert not any(parameter.requires_grad for parameter in network.parameters())


@pytest.mark.parametrize("name", FROZEN)
def test_a_seed_always_draws_the_same_weights(name: str) -> None:
    sizes, draw, _, _ = FROZEN[name]

    first, again, other = (draw(sizes, seeded(seed)) for seed in (1, 1, 2))

    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", FROZEN)
def test_half_precision_weights_become_single(name: str) -> None:
    sizes, draw, load, _ = FROZEN[name]
    state = {key: value.bfloat16() for key, value in draw(sizes, seeded()).items()}

    network = load(state, sizes)

    assert {parameter.dtype for parameter in network.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", FROZEN)
def test_a_missing_weight_is_named(name: str) -> None:
    sizes, draw, load, key = FROZEN[name]
    state = draw(sizes, seeded())
    del state[key]

    with pytest.raises(CheckpointError, match=f"missing: .*{key.split('.', 1)[1]}"):
        load(state, sizes)


@pytest.mark.parametrize("name", FROZEN)
def test_a_weight_of_another_shape_is_named(name: str) -> None:
    sizes, draw, load, key = FROZEN[name]
    state = draw(sizes, seeded())
    state[key] = torch.zeros(3, 1)

    expected = rf"of another shape: .*{key.split('.', 1)[1]} \(3, 1\) instead of"
    with pytest.raises(CheckpointError, match=expected):
        load(state, sizes)


@pytest.mark.parametrize("name", FROZEN)
def test_a_weight_too_many_is_named(name: str) -> None:
    sizes, draw, load, key = FROZEN[name]
    stranger = key.rsplit(".", 1)[0] + ".stranger"
    state = draw(sizes, seeded()) | {stranger: torch.zeros(1)}

    with pytest.raises(CheckpointError, match="unexpected: .*stranger"):
        load(state, sizes)


def test_the_voice_file_holds_both_networks() -> None:
    voice = random_vocoder_state(TINY.vocoder, seeded())
    voice |= random_speaker_state(TINY.speaker, seeded()) | {"mel_stats": torch.ones(80)}

    vocoder = load_vocoder(voice, vocoder_sizes(voice))
    encoder = load_speaker_encoder(voice, speaker_sizes(voice))

    assert vocoder.waveform_decoder.conv_pre.in_channels == 64
    assert encoder.fc.out_features == 32


@pytest.mark.parametrize("sizes", [TINY.dvae, DvaeSizes(40, 8, 16, 100, 2)])
def test_sizes_of_the_dvae_are_in_its_shapes(sizes: DvaeSizes) -> None:
    assert dvae_sizes(random_dvae_state(sizes, seeded())) == sizes


@pytest.mark.parametrize("sizes", [TINY.vocoder, VocoderSizes(24, 8, 16, (4, 2), (8, 4), (3, 5))])
def test_sizes_of_the_vocoder_are_in_its_shapes(sizes: VocoderSizes) -> None:
    assert vocoder_sizes(random_vocoder_state(sizes, seeded())) == sizes


@pytest.mark.parametrize("sizes", [TINY.speaker, SpeakerSizes((1, 2, 1, 1), (8, 8, 16, 8), 32, 24)])
def test_sizes_of_the_speaker_encoder_are_in_its_shapes(sizes: SpeakerSizes) -> None:
    assert speaker_sizes(random_speaker_state(sizes, seeded())) == sizes


@pytest.mark.parametrize("read", [dvae_sizes, vocoder_sizes, speaker_sizes])
def test_sizes_of_something_else_are_refused(read: Callable[[State], Any]) -> None:
    with pytest.raises(CheckpointError, match="has no '.*weight'"):
        read({"stranger": torch.zeros(1)})


def test_the_published_sizes_have_the_published_shapes() -> None:
    with torch.device("meta"):
        vocoder, encoder = XttsVocoder(VocoderSizes()), SpeakerEncoder(SpeakerSizes())

    shapes = {
        name: tuple(value.shape)
        for network in (vocoder, encoder)
        for name, value in network.state_dict().items()
    }
    assert shapes["waveform_decoder.conv_pre.weight"] == (512, 1024, 7)
    assert shapes["waveform_decoder.ups.3.weight"] == (64, 32, 4)
    assert shapes["waveform_decoder.resblocks.11.convs2.2.weight"] == (32, 32, 11)
    assert shapes["waveform_decoder.cond_layer.weight"] == (512, 512, 1)
    assert shapes["waveform_decoder.conv_post.weight"] == (1, 32, 7)
    assert shapes["layer4.2.se.fc.0.weight"] == (32, 256)
    assert shapes["attention.0.weight"] == (128, 2048, 1)
    assert shapes["fc.weight"] == (512, 4096)
    assert shapes["torch_spec.1.mel_scale.fb"] == (257, 64)

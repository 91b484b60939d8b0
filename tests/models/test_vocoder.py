"""The front end, the pitch tracker and the vocoders, each against something computed otherwise."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm
from torchaudio.functional import melscale_fbanks

from trainer.core.errors import CheckpointError
from trainer.models._layers.hifigan import Hifigan, HifiganSettings, fold_weight_norm
from trainer.models._layers.mel import (
    MelSettings,
    invert_mel,
    log_mel,
    magnitudes,
    mel_filters,
)
from trainer.models.fastspeech2.inference.synthesis import load_hifigan
from trainer.models.fastspeech2.inference.vocoder import griffin_lim, istft, pulse_noise, stft
from trainer.models.fastspeech2.training.pitch import track_pitch

SETTINGS = MelSettings()
RATE = SETTINGS.sample_rate


def buzz(f0: np.ndarray, num_harmonics: int = 20) -> np.ndarray:
    """Return harmonics of f0 (T_wav,) Hz that fall off towards the top."""
    phase = 2 * np.pi * np.cumsum(f0) / RATE
    harmonics = range(1, num_harmonics + 1)
    return (0.1 * sum(np.sin(k * phase) / k**0.5 for k in harmonics)).astype(np.float32)


def mel_of(wave: np.ndarray) -> np.ndarray:
    return log_mel(magnitudes(wave, SETTINGS), SETTINGS)


def test_mel_equals_a_direct_computation() -> None:
    wave = np.random.default_rng(0).normal(0, 0.1, 256 * 6 + 100).astype(np.float32)

    found = mel_of(wave)

    padded = np.pad(wave.astype(np.float64), 384, mode="reflect")
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(513), np.arange(1024)) / 1024)
    filters = melscale_fbanks(513, 0.0, 8000.0, 80, RATE, norm="slaney", mel_scale="slaney").numpy()
    for frame in range(6):
        spectrum = waves @ (padded[frame * 256 : frame * 256 + 1024] * window)
        expected = np.log(np.maximum(np.abs(spectrum) @ filters, 1e-5))
        np.testing.assert_allclose(found[frame], expected, atol=2e-4)
    assert found.shape == (6, 80)
    assert found.dtype == np.float32


def test_mel_filters_equal_those_of_torchaudio() -> None:
    expected = melscale_fbanks(513, 0.0, 8000.0, 80, RATE, norm="slaney", mel_scale="slaney")

    np.testing.assert_allclose(mel_filters(SETTINGS), expected.numpy().T, atol=1e-6)


def test_audio_shorter_than_a_window_has_a_mel() -> None:
    assert mel_of(np.ones(300, np.float32)).shape == (1, 80)


def test_an_inverted_mel_has_the_mel_it_came_from() -> None:
    mel = mel_of(buzz(np.full(RATE // 2, 180.0)))

    again = log_mel(invert_mel(mel, SETTINGS), SETTINGS)

    assert np.abs(again - mel).mean() < 0.15


@pytest.mark.parametrize("f0", [80.0, 120.0, 233.0, 400.0])
def test_pitch_of_a_steady_voice_is_exact(f0: float) -> None:
    found = track_pitch(buzz(np.full(RATE // 2, f0)), SETTINGS)[2:-2]

    assert np.all(found > 0)
    np.testing.assert_allclose(found, f0, rtol=0.01)


def test_pitch_follows_a_glide_without_octave_jumps() -> None:
    f0 = np.geomspace(100, 300, RATE)

    found = track_pitch(buzz(f0), SETTINGS)

    centres = ((np.arange(len(found)) + 0.5) * SETTINGS.hop_length).astype(int)
    np.testing.assert_allclose(found[3:-3], f0[centres][3:-3], rtol=0.03)


def test_noise_and_silence_are_unvoiced() -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, RATE // 2).astype(np.float32)
    loud = buzz(np.full(RATE // 4, 150.0))
    quiet = np.random.default_rng(2).normal(0, 1e-5, RATE // 4).astype(np.float32)

    assert np.mean(track_pitch(noise, SETTINGS) > 0) < 0.1
    assert np.all(track_pitch(np.concatenate([loud, quiet]), SETTINGS)[-15:] == 0)


def test_istft_undoes_stft() -> None:
    wave = np.random.default_rng(0).normal(0, 0.1, 256 * 20).astype(np.float32)

    again = istft(stft(wave, SETTINGS), SETTINGS)

    np.testing.assert_allclose(again[512:-512], wave[512:-512], atol=1e-5)


def test_griffin_lim_keeps_the_mel() -> None:
    mel = mel_of(buzz(np.full(RATE, 150.0), 40))

    wave = griffin_lim(mel, SETTINGS)

    heard = mel > mel.max() - 6
    assert len(wave) == len(mel) * SETTINGS.hop_length
    assert np.abs(mel_of(wave) - mel)[heard].mean() < 0.35


def test_the_pulse_vocoder_keeps_the_envelope() -> None:
    mel = np.tile(-1 - 0.06 * np.arange(80, dtype=np.float32), (60, 1))
    mel[30:] -= 3
    mel[:, 20:30] += 2

    wave = pulse_noise(mel, np.full(60, 120.0), SETTINGS)

    # Averages over eight bands: single ones follow the harmonics.
    found = np.exp(mel_of(wave)).reshape(60, 10, 8).mean(axis=2)
    wanted = np.exp(mel).reshape(60, 10, 8).mean(axis=2)
    error = np.abs(np.log(found / wanted))
    assert len(wave) == 60 * SETTINGS.hop_length
    assert np.median(error[3:27]) < 0.3
    assert np.median(error[33:57]) < 0.3


def test_the_pulse_vocoder_speaks_at_the_given_pitch() -> None:
    mel = np.tile(-1 - 0.06 * np.arange(80, dtype=np.float32), (43, 1))
    f0 = np.full(len(mel), 140.0)
    f0[:10] = 0

    found = track_pitch(pulse_noise(mel, f0, SETTINGS), SETTINGS)

    assert np.median(found[15:-5]) == pytest.approx(140, rel=0.02)
    assert np.mean(found[:8] > 0) < 0.3


def test_vocoders_repeat_themselves() -> None:
    mel = mel_of(buzz(np.full(RATE // 4, 200.0)))
    f0 = np.full(len(mel), 200.0)

    np.testing.assert_array_equal(griffin_lim(mel, SETTINGS), griffin_lim(mel, SETTINGS))
    np.testing.assert_array_equal(pulse_noise(mel, f0, SETTINGS), pulse_noise(mel, f0, SETTINGS))


def test_a_hifigan_checkpoint_with_weight_norm_is_folded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    plain = Hifigan(HifiganSettings())
    mel = torch.randn(1, 80, 4)
    with torch.no_grad():
        expected = plain(mel)
    for module in list(plain.modules()):
        if isinstance(module, torch.nn.Conv1d | torch.nn.ConvTranspose1d):
            weight_norm(module)
    path = tmp_path / "generator.pth.tar"
    torch.save({"generator": plain.state_dict()}, path)

    with torch.no_grad():
        found = load_hifigan(str(path))(mel)

    assert found.shape == (1, 4 * SETTINGS.hop_length)
    torch.testing.assert_close(found, expected)


def test_older_weight_norm_keys_are_folded_alike() -> None:
    state = {"up.weight_v": torch.randn(4, 3, 5), "up.weight_g": torch.rand(4, 1, 1)}

    folded = fold_weight_norm(state)

    lengths = folded["up.weight"].flatten(1).norm(dim=1)
    assert list(folded) == ["up.weight"]
    torch.testing.assert_close(lengths, state["up.weight_g"].flatten())


def test_unusable_hifigan_weights_are_explained(tmp_path: Path) -> None:
    (tmp_path / "text.pth").write_text("not a checkpoint")
    torch.save({"generator": {"conv_pre.bias": torch.zeros(3)}}, tmp_path / "other.pth")

    for name in ("absent.pth", "text.pth", "other.pth"):
        with pytest.raises(CheckpointError, match=name):
            load_hifigan(str(tmp_path / name))

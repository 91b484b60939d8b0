"""Speech while it is made: pieces that join exactly, and a WAV that plays while it grows."""

import io
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer.core.specs import Speech
from trainer.data.audio.audio_io import AudioError
from trainer.data.audio.live_wav import wav_header, write_live
from trainer.inference.synthesis import speak_pieces
from trainer.models.fastspeech2 import FAMILY as FASTSPEECH2
from trainer.models.xtts.inference.streaming import TO_MELS, TO_OUTPUT, decode_pieces, reach_of
from trainer.models.xtts.network.sizes import TINY, VocoderSizes
from trainer.models.xtts.network.vocoder import XttsVocoder, load_vocoder, random_vocoder_state

SIZES = replace(TINY.vocoder, latent_width=16)


@pytest.fixture(scope="module")
def vocoder() -> XttsVocoder:
    return load_vocoder(random_vocoder_state(SIZES, torch.Generator().manual_seed(3)), SIZES)


@pytest.fixture(scope="module")
def speaker() -> Tensor:
    torch.manual_seed(4)
    return F.normalize(torch.randn(1, SIZES.speaker_width, 1), dim=1)


def make_latents(count: int) -> Tensor:
    torch.manual_seed(count)
    return torch.randn(count, SIZES.latent_width)


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 28, 29, 60, 147, 605])
def test_pieces_join_to_the_wave_of_the_whole(
    vocoder: XttsVocoder, speaker: Tensor, count: int
) -> None:
    latents = make_latents(count)
    whole = vocoder(latents[None], speaker)[0]

    pieces = list(decode_pieces(latents, vocoder, SIZES, speaker))

    assert whole.abs().max() > 0.05
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0, atol=2e-6)


@torch.no_grad()
@pytest.mark.parametrize(("first_codes", "more_codes"), [(1, 1), (5, 3), (7, 13), (100, 20)])
def test_pieces_of_any_size_join_exactly(
    vocoder: XttsVocoder, speaker: Tensor, first_codes: int, more_codes: int
) -> None:
    latents = make_latents(40)
    whole = vocoder(latents[None], speaker)[0]

    pieces = list(
        decode_pieces(
            latents, vocoder, SIZES, speaker, first_codes=first_codes, more_codes=more_codes
        )
    )

    torch.testing.assert_close(torch.cat(pieces), whole, rtol=0, atol=2e-6)


@torch.no_grad()
def test_sound_comes_before_the_codes_are_all_drawn(vocoder: XttsVocoder, speaker: Tensor) -> None:
    drawn = []

    def draw() -> Iterator[Tensor]:
        for latent in make_latents(100):
            drawn.append(latent)
            yield latent

    first = next(decode_pieces(draw(), vocoder, SIZES, speaker))

    assert len(drawn) == 8
    assert 0.1 < len(first) / 24_000 < 0.4


@torch.no_grad()
def test_no_piece_decodes_what_was_decoded_before(
    vocoder: XttsVocoder, speaker: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    decode = vocoder.waveform_decoder.forward

    def count(frames: Tensor, speaker: Tensor) -> Tensor:
        sizes.append(frames.shape[-1])
        return decode(frames, speaker)

    monkeypatch.setattr(vocoder.waveform_decoder, "forward", count)
    pieces = list(decode_pieces(make_latents(300), vocoder, SIZES, speaker))

    assert len(pieces) == len(sizes) > 10
    assert max(sizes) <= 20 * 4 * 160 / 147 + 2 * reach_of(SIZES) + 1


@torch.no_grad()
def test_the_context_is_as_wide_as_a_change_is_heard_and_no_wider() -> None:
    torch.manual_seed(0)
    loud = VocoderSizes(latent_width=4, speaker_width=2, width=32)
    network = XttsVocoder(loud).waveform_decoder.double()
    for weight in network.parameters():
        nn.init.normal_(weight, std=1.0)
    frames, speaker = torch.randn(1, 4, 61).double(), torch.randn(1, 2, 1).double()
    changed = frames.clone()
    changed[..., 30] += 1e3

    before_tanh: list[Tensor] = []  # which would hide differences
    network.conv_post.register_forward_hook(lambda *given: before_tanh.append(given[2]))
    network(frames, speaker)
    network(changed, speaker)
    heard = (before_tanh[0] != before_tanh[1]).view(61, 256).any(dim=1)

    reached = heard.nonzero().flatten() - 30
    assert (-reached.min(), reached.max()) == (reach_of(loud), reach_of(loud))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50, 605])
def test_a_part_of_a_stretched_whole_is_that_part(count: int) -> None:
    latents = make_latents(count).t()[None]
    mels = F.interpolate(latents, scale_factor=4.0, mode="linear")
    whole = F.interpolate(mels, scale_factor=24_000 / 22_050, mode="linear")
    num_mels, num_frames = TO_MELS.length(count), TO_OUTPUT.length(TO_MELS.length(count))
    first = num_frames // 2

    from_mel, to_mel = TO_OUTPUT.needed(first, num_frames, num_mels, torch.float32)
    found = TO_OUTPUT.part(mels[..., from_mel:to_mel], from_mel, num_mels, first, num_frames)

    assert num_frames == whole.shape[-1]
    torch.testing.assert_close(found, whole[..., first:], rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [1, 2, 3, 30, 500])
def test_settled_frames_stay_as_they_are(count: int) -> None:
    frames = make_latents(count + 4).t()[None]
    num_settled = TO_OUTPUT.settled(count)
    before = TO_OUTPUT.part(frames[..., :count], 0, count, 0, max(num_settled, 1))

    after = TO_OUTPUT.part(frames, 0, count + 4, 0, max(num_settled, 1))

    assert num_settled >= count - 2
    torch.testing.assert_close(before[..., :num_settled], after[..., :num_settled])


def test_a_header_tells_the_length_or_that_it_is_open(tmp_path: Path) -> None:
    samples = struct.pack("<4h", 0, 100, -100, 0)

    closed, rate = soundfile.read(io.BytesIO(wav_header(24_000, 8) + samples), dtype="int16")
    header = wav_header(24_000)

    assert (closed.tolist(), rate) == ([0, 100, -100, 0], 24_000)
    assert (header[4:8], header[40:44]) == (b"\xff" * 4, b"\xff" * 4)


def test_a_file_grows_with_every_piece_and_ends_with_its_length(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "x.wav"
    pieces = [(np.full(2400, 0.5, np.float32), 24_000), (np.zeros(1200, np.float32), 24_000)]

    sizes = [(seconds, path.stat().st_size) for seconds in write_live(str(path), pieces)]
    wave, rate = soundfile.read(path)

    assert sizes == [(0.1, 44 + 4800), (0.05, 44 + 7200)]
    assert (len(wave), rate) == (3600, 24_000)
    assert wave[0] == pytest.approx(0.5, abs=1e-4)


def test_nothing_is_written_before_there_is_sound(tmp_path: Path) -> None:
    def refuse() -> Iterator[tuple[np.ndarray, int]]:
        raise AudioError("silent_audio", "There is no voice.", "Bring one.")
        yield np.zeros(1), 1

    with pytest.raises(AudioError, match="There is no voice"):
        list(write_live(str(tmp_path / "x.wav"), refuse()))

    assert not (tmp_path / "x.wav").exists()


def test_sound_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="NaN or infinite"):
        list(write_live(str(tmp_path / "x.wav"), [(np.full(3, np.nan), 8000)]))


def test_a_family_without_pieces_speaks_in_one() -> None:
    spoken = Speech(np.ones(5, np.float32), 8000)
    family = replace(FASTSPEECH2, stream=None, synthesize=lambda *given: spoken)

    pieces = list(speak_pieces(family, nn.Identity(), {"speakers": [{"name": "ann"}]}, "Hello."))

    assert pieces == [spoken]

"""Audio of any usual kind becomes one mono wave; faults become sentences."""

import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.helpers.clips import make_tone, write_tone
from trainer.core.errors import DataError
from trainer.data.audio.audio_io import audio_facts, load_audio, resample, trim_silence, write_wav


def find_pitch(wave: np.ndarray, sample_rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(wave * np.hanning(len(wave))))
    return float(spectrum.argmax()) * sample_rate / len(wave)


@pytest.mark.parametrize("rate", [8000, 16000, 44100, 48000])
@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3", "aiff"])
@pytest.mark.fault("D6", "D8")
def test_every_container_and_rate_yields_the_same_tone(
    tmp_path: Path, extension: str, rate: int
) -> None:
    path = tmp_path / f"a.{extension}"
    soundfile.write(str(path), make_tone(1.0, rate, 440.0), rate)

    wave = load_audio(path, 22050)

    assert (wave.dtype, wave.ndim) == (np.float32, 1)
    assert len(wave) == pytest.approx(22050, rel=0.16)
    assert find_pitch(wave, 22050) == pytest.approx(440.0, abs=2.0)


@pytest.mark.parametrize("subtype", ["PCM_U8", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW"])
@pytest.mark.fault("D8")
def test_every_wav_encoding_is_read(tmp_path: Path, subtype: str) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(str(path), make_tone(), 16000, subtype=subtype)

    wave = load_audio(path, 16000)

    assert audio_facts(path).duration_s == pytest.approx(1.0)
    assert np.abs(wave - make_tone()).max() < 0.02


@pytest.mark.parametrize("subtype", ["IMA_ADPCM", "MS_ADPCM"])
def test_packed_wav_lengths_come_from_the_library(tmp_path: Path, subtype: str) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(str(path), make_tone(), 16000, subtype=subtype)

    assert audio_facts(path).duration_s == pytest.approx(1.0, abs=0.1)


def test_channels_that_agree_are_mixed(tmp_path: Path) -> None:
    tone = make_tone()
    soundfile.write(str(tmp_path / "a.wav"), np.stack([tone, 0.5 * tone], 1), 16000, "FLOAT")

    wave = load_audio(tmp_path / "a.wav", 16000)

    np.testing.assert_allclose(wave, 0.75 * tone, atol=1e-6)


@pytest.mark.parametrize("level", [1.0, 0.9, 0.5])
@pytest.mark.fault("D7")
def test_channels_that_cancel_give_the_louder_one(tmp_path: Path, level: float) -> None:
    tone = make_tone()
    soundfile.write(str(tmp_path / "a.wav"), np.stack([-level * tone, tone], 1), 16000, "FLOAT")

    wave = load_audio(tmp_path / "a.wav", 16000)

    np.testing.assert_allclose(np.abs(wave), np.abs(tone), atol=1e-6)


@pytest.mark.parametrize("extension", ["wav", "flac", "ogg", "mp3", "aiff"])
@pytest.mark.parametrize("share", [0.5, 0.9])
@pytest.mark.fault("D1")
def test_a_cut_file_is_named_by_its_header_alone(
    tmp_path: Path, extension: str, share: float
) -> None:
    path = write_tone(tmp_path / f"a.{extension}", 3.0)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])

    with pytest.raises(DataError, match="truncated|cannot be read as audio"):
        audio_facts(path)
    with pytest.raises(DataError):
        load_audio(path, 16000)


def test_an_ogg_cut_between_two_pages_is_named(tmp_path: Path) -> None:
    path = write_tone(tmp_path / "a.ogg", 3.0)
    data = path.read_bytes()
    path.write_bytes(data[: data.rfind(b"OggS")])

    with pytest.raises(DataError, match="its last page is missing"):
        audio_facts(path)


def test_a_wav_that_was_streamed_declares_no_length_and_is_read(tmp_path: Path) -> None:
    path = write_tone(tmp_path / "a.wav")
    data = bytearray(path.read_bytes())
    data[4:8] = data[40:44] = struct.pack("<I", 0xFFFFFFFF)
    path.write_bytes(data)

    assert audio_facts(path).duration_s == pytest.approx(1.0)
    assert len(load_audio(path, 16000)) == 16000


@pytest.mark.parametrize("rate", [0, 4_000_000_000])
@pytest.mark.fault("D6")
def test_a_lying_sample_rate_is_refused(tmp_path: Path, rate: int) -> None:
    path = write_tone(tmp_path / "a.wav")
    data = bytearray(path.read_bytes())
    data[24:28] = struct.pack("<I", rate)
    path.write_bytes(data)

    with pytest.raises(DataError):
        audio_facts(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"RIFF",
        b"just some text, no sound",
        b"RIFF\x24\0\0\0WAVE",
        b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0",
        b"ID3\3",
        b"OggS",
        b"fLaC",
        b"\xff" * 300,
    ],
)
@pytest.mark.fault("D2")
def test_a_file_that_is_no_audio_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(content)

    with pytest.raises(DataError, match="a.wav"):
        load_audio(path, 16000)


def test_a_claim_of_many_hours_is_refused_before_memory_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    with path.open("wb") as file:
        header = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", 0xFFFFFFFF, b"WAVE", b"fmt ", 16, 1, 1,
                             1000, 1000, 1, 8)  # fmt: skip
        file.write(header + struct.pack("<4sI", b"data", 0xFFFFFFFF))
        file.truncate(10_000_000)  # a sparse file: it takes no room

    with pytest.raises(DataError, match="2.8 hours long"):
        load_audio(path, 16000)


@pytest.mark.fault("D2")
def test_a_header_without_sound_is_a_sentence(tmp_path: Path) -> None:
    soundfile.write(str(tmp_path / "a.wav"), np.zeros(0, np.float32), 16000)

    with pytest.raises(DataError, match="no audio"):
        load_audio(tmp_path / "a.wav", 16000)


@pytest.mark.parametrize(
    ("value", "message"),
    [(np.nan, "NaN or infinite"), (np.inf, "NaN or infinite"), (1e30, "peaks at")],
)
@pytest.mark.fault("D3")
def test_samples_that_are_no_sound_are_refused(tmp_path: Path, value: float, message: str) -> None:
    wave = make_tone()
    wave[500] = value
    soundfile.write(str(tmp_path / "a.wav"), wave, 16000, subtype="FLOAT")

    with pytest.raises(DataError, match=message):
        load_audio(tmp_path / "a.wav", 16000)


@pytest.mark.parametrize("level", [0.0, 0.4])
@pytest.mark.fault("D4")
def test_silence_is_refused_even_with_an_offset(tmp_path: Path, level: float) -> None:
    wave = np.full(16000, level, np.float32)
    soundfile.write(str(tmp_path / "a.wav"), wave, 16000, subtype="PCM_16")

    with pytest.raises(DataError, match="silent"):
        load_audio(tmp_path / "a.wav", 16000)


def test_quiet_speech_is_not_silence(tmp_path: Path) -> None:
    wave = make_tone() * 0.01
    soundfile.write(str(tmp_path / "a.wav"), wave, 16000, subtype="PCM_16")

    assert len(load_audio(tmp_path / "a.wav", 16000)) == 16000


@pytest.mark.parametrize(("rate", "wanted"), [(48000, 22050), (44100, 16000), (8000, 22050)])
def test_resampling_keeps_what_fits_and_drops_what_would_alias(rate: int, wanted: int) -> None:
    nyquist = min(rate, wanted) / 2
    kept = resample(make_tone(1.0, rate, 0.8 * nyquist), rate, wanted)
    middle = slice(wanted // 4, 3 * wanted // 4)

    assert np.sqrt(np.square(kept[middle]).mean()) == pytest.approx(0.3 / np.sqrt(2), rel=0.01)
    if rate > wanted:
        above = resample(make_tone(1.0, rate, 1.15 * nyquist), rate, wanted)
        assert np.sqrt(np.square(above[middle]).mean()) < 1e-4


def test_resampling_is_the_same_every_time() -> None:
    wave = make_tone(0.5, 44100)

    assert resample(wave, 44100, 22050).tobytes() == resample(wave, 44100, 22050).tobytes()


@pytest.mark.fault("D9")
def test_trimming_cuts_both_ends_and_keeps_the_middle() -> None:
    quiet = np.zeros(8000, np.float32)
    wave = np.concatenate([quiet, make_tone(1.0), quiet])

    trimmed = trim_silence(wave, 16000)

    assert len(trimmed) == pytest.approx(16000 + 2 * 800, abs=700)
    assert np.square(trimmed).sum() == pytest.approx(float(np.square(wave).sum()), rel=1e-4)
    assert len(trim_silence(quiet, 16000)) == len(quiet)


def test_a_written_wav_is_16_bit_and_never_wraps(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.wav"

    write_wav(path, make_tone() * 5.0, 16000)

    info = soundfile.info(str(path))
    wave = load_audio(path, 16000)
    assert (info.subtype, info.samplerate) == ("PCM_16", 16000)
    np.testing.assert_allclose(wave, make_tone() / np.abs(make_tone()).max(), atol=1e-4)
    assert [file.name for file in path.parent.iterdir()] == ["a.wav"]


def test_a_wave_that_is_not_finite_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="NaN or infinite"):
        write_wav(tmp_path / "a.wav", np.array([0.0, np.nan]), 16000)

    assert list(tmp_path.iterdir()) == []


def test_a_wave_that_the_disk_refuses_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The partial file has a random name; here it is known, and stands for a full disk.
    monkeypatch.setattr("trainer.core.atomic_io.os.urandom", bytes)
    (tmp_path / ".a.wav.00000000.part").symlink_to("/dev/full")

    with pytest.raises(OSError, match="No space left"):
        write_wav(tmp_path / "a.wav", make_tone(), 16000)


@pytest.mark.fault("D10")
def test_any_cut_or_changed_byte_gives_a_wave_or_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    outcomes = set()

    for extension in ("wav", "flac", "ogg"):
        path = write_tone(tmp_path / f"a.{extension}", 0.3, 8000)
        whole = path.read_bytes()
        for _ in range(100):
            data = bytearray(whole)
            for place in rng.integers(0, min(len(data), 400), 4):
                data[place] = int(rng.integers(256))
            path.write_bytes(data[: int(rng.integers(1, len(data) + 1))])
            try:
                outcomes.add(np.isfinite(load_audio(path, 8000)).all())
            except DataError:
                outcomes.add("refused")

    assert outcomes <= {np.True_, "refused"}
    assert "refused" in outcomes

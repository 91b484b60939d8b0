"""Read duration, sample rate and channels from audio headers, and detect truncated files.

libsndfile reads a truncated WAV or MP3 without an error, so the length that the container
declares is compared with the size of the file. Nothing is decoded.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import soundfile

from trainer.core.errors import DataError

CONVERT = "Convert it to WAV, for example with: ffmpeg -i FILE out.wav"
COPY_AGAIN = "Copy or download the file again."
# Lengths that programs write when they stream to a pipe and cannot know the size.
_STREAMED = (0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0xFFFFF000)
_SIMPLE_FORMATS = (1, 3, 6, 7)  # PCM, float, A-law, mu-law: a frame is `block_align` bytes
_TAIL = 65536  # An Ogg page has at most 65,307 bytes.


class AudioError(DataError):
    """An audio file cannot be used; `kind`, `reason` and `remedy` go to the ledger."""

    def __init__(self, kind: str, reason: str, remedy: str) -> None:
        self.kind, self.reason, self.remedy = kind, reason, remedy
        # All three must be in `args`, so that the error can be pickled in a worker.
        super().__init__(kind, reason, remedy)

    def __str__(self) -> str:
        return f"{self.reason} {self.remedy}"


@dataclass(frozen=True)
class AudioFacts:
    """Duration, sample rate (Hz) and channels according to the header."""

    duration_s: float
    sample_rate: int
    channels: int


def audio_facts(path: Path | str) -> AudioFacts:
    """Read duration, sample rate (Hz) and channels from the header.

    Raises:
        AudioError: the file does not exist, is empty, truncated or not readable as audio.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            facts = _read_facts(file, path)
    except struct.error:
        raise AudioError(
            "unreadable_audio", f"{path.name} has a broken header.", COPY_AGAIN
        ) from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise AudioError(
            "unreadable_audio", f"{path.name} cannot be read: {reason}.", "Check its permissions."
        ) from None
    if not 1000 <= facts.sample_rate <= 768_000:
        raise AudioError(
            "unreadable_audio",
            f"{path.name} has a sample rate of {facts.sample_rate} Hz, according to its header.",
            "Export the file again; common rates are 8000 to 192000 Hz.",
        )
    if facts.duration_s <= 0:
        raise AudioError(
            "empty_audio", f"{path.name} has a header but no audio.", "Record or export it again."
        )
    return facts


def _read_facts(file: BinaryIO, path: Path) -> AudioFacts:
    head = file.read(12)
    size = file.seek(0, 2)
    if size == 0:
        raise AudioError("empty_audio", f"{path.name} has 0 bytes.", COPY_AGAIN)
    if head[:4] == b"RIFF" and head[8:] == b"WAVE":
        facts = _wav_facts(file, size, path)
        if facts is not None:
            return facts
    if head[:4] == b"OggS":
        _check_ogg(file, size, path)
    elif head[:4] == b"FORM":
        _check_aiff(head, size, path)
    elif head[:3] == b"ID3" or head[:1] == b"\xff":
        _check_mp3(file, size, path)
    facts = _library_facts(path)
    if head[:4] == b"fLaC":
        _check_flac(path)
    return facts


def _wav_facts(file: BinaryIO, size: int, path: Path) -> AudioFacts | None:
    """Walk the RIFF chunks; return None if only the library can count frames (compressed WAV)."""
    position = 12
    layout: tuple[int, int, int, int] | None = None
    while position + 8 <= size:
        file.seek(position)
        name, length = struct.unpack("<4sI", file.read(8))
        if name == b"fmt " and length >= 16:
            tag, channels, rate, _, block, _ = struct.unpack("<HHIIHH", file.read(16))
            if tag == 0xFFFE and length >= 26:  # WAVE_FORMAT_EXTENSIBLE: the real tag follows.
                file.seek(8, 1)
                tag = struct.unpack("<H", file.read(2))[0]
            layout = (tag, channels, rate, block)
        elif name == b"data":
            there = size - position - 8
            # 64 bytes of tolerance, chosen by hand, for padding at the end.
            if length not in _STREAMED and length > there + 64:
                raise _cut(path, f"it has {there} of {length} bytes of audio")
            return _from_layout(layout, min(length, there))
        position += 8 + length + length % 2
    raise AudioError("unreadable_audio", f"{path.name} is a WAV header without audio.", COPY_AGAIN)


def _from_layout(layout: tuple[int, int, int, int] | None, num_bytes: int) -> AudioFacts | None:
    if layout is None:
        return None
    tag, channels, rate, block = layout
    if tag not in _SIMPLE_FORMATS or not channels or not block or not rate:
        return None
    return AudioFacts(num_bytes // block / rate, rate, channels)


def _library_facts(path: Path) -> AudioFacts:
    try:
        info = soundfile.info(str(path))
    except (soundfile.LibsndfileError, RuntimeError, TypeError):
        raise AudioError(
            "unreadable_audio", f"{path.name} cannot be read as audio.", CONVERT
        ) from None
    if info.samplerate <= 0:
        return AudioFacts(1.0, 0, info.channels)
    return AudioFacts(info.frames / info.samplerate, info.samplerate, info.channels)


def _check_flac(path: Path) -> None:
    # Decode only the last frame: seeking to it fails if the file is truncated.
    try:
        with soundfile.SoundFile(str(path)) as file:
            file.seek(file.frames - 1)
            found = len(file.read(1))
    except soundfile.LibsndfileError:
        found = 0
    if not found:
        raise _cut(path, "its last block is missing")


def _check_aiff(head: bytes, size: int, path: Path) -> None:
    length = struct.unpack(">I", head[4:8])[0]
    if length not in _STREAMED and length + 8 > size + 64:
        raise _cut(path, f"it has {size} of {length + 8} bytes")


def _check_ogg(file: BinaryIO, size: int, path: Path) -> None:
    file.seek(max(0, size - _TAIL))
    tail = file.read()
    page = tail.rfind(b"OggS")
    # Bit 2 of a page's flags marks the end of the stream; a truncated file has no such page.
    if page < 0 or page + 27 > len(tail) or not tail[page + 5] & 4:
        raise _cut(path, "its last page is missing")
    segments = tail[page + 27 : page + 27 + tail[page + 26]]
    if page + 27 + tail[page + 26] + sum(segments) > len(tail):
        raise _cut(path, "its last page is incomplete")


def _check_mp3(file: BinaryIO, size: int, path: Path) -> None:
    file.seek(0)
    head = file.read(10)
    start = 0
    if head[:3] == b"ID3":
        a, b, c, d = struct.unpack("4B", head[6:10])
        start = 10 + (a << 21 | b << 14 | c << 7 | d)
    file.seek(start)
    frame = file.read(256)
    mark = max(frame.find(b"Xing"), frame.find(b"Info"))
    if mark < 0 or len(frame) < mark + 16:
        return
    flags = struct.unpack(">I", frame[mark + 4 : mark + 8])[0]
    if flags & 2:
        offset = mark + 8 + (4 if flags & 1 else 0)
        length = struct.unpack(">I", frame[offset : offset + 4])[0]
        # 1 % of tolerance, chosen by hand: tags at the ends are not part of every count.
        if length > size - start + max(256, length // 100):
            raise _cut(path, f"it has {size - start} of {length} bytes")


def _cut(path: Path, detail: str) -> AudioError:
    return AudioError("truncated_audio", f"{path.name} is truncated: {detail}.", COPY_AGAIN)

"""Decode a list file to text; the encoding is found by strict decoding, never guessed.

Latin-1 and similar encodings accept any bytes, so they are never tried: wrong letters would be
trained into the voice without an error.
"""

import codecs
import re
import stat
from pathlib import Path

from trainer.core.device import GIB
from trainer.core.errors import DataError

_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_SIGNATURES = (
    (b"PK\x03\x04", "a ZIP archive or Excel workbook"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook"),
    (b"RIFF", "a WAV file"),
    (b"fLaC", "a FLAC file"),
    (b"OggS", "an OGG file"),
    (b"ID3", "an MP3 file"),
    (b"%PDF", "a PDF"),
    (b"\x1f\x8b", "a gzip archive"),
)
# The letters that must make up most of the decoded text for a legacy encoding to be accepted.
_LEGACY = (
    ("cp949", re.compile("[\uac00-\ud7a3]")),
    ("cp932", re.compile("[\u3040-\u30ff\u4e00-\u9fff\u3000-\u303f\uff01-\uff5e]")),
    ("gb18030", re.compile("[\u4e00-\u9fff\u3000-\u303f\uff01-\uff5e]")),
    ("big5", re.compile("[\u4e00-\u9fff\u3000-\u303f\uff01-\uff5e]")),
)
_MAX_BYTES = 2 * GIB  # About 20 million rows of 100 bytes; larger files are not lists.
_KANA = re.compile("[\u3040-\u30ff]")
_FOREIGN = re.compile("[^\x00-\x7f]")
_DAMAGED = re.compile("[\udc80-\udcff]")


def read_text(path: Path, language: str = "") -> tuple[str, str]:
    """Read a list file; return its text and the name of its encoding.

    `language` (BCP-47) only decides which legacy encoding is tried first. If a few bytes of a
    UTF-8 file are invalid, they become lone surrogates, so that only their rows are lost (see
    `is_damaged`).

    Raises:
        DataError: the file does not exist, is empty, is not text or has an unknown encoding.
    """
    try:
        _refuse_odd_file(path)
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist. Enter the path of a CSV or list file.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{path} cannot be read: {reason}. Check its permissions.") from None
    if not data.strip(b"\x00 \t\r\n"):
        raise DataError(f"{path} is empty. Expected one clip per row, as in audio_file|text.")
    for signature, noun in _SIGNATURES:
        if data.startswith(signature):
            raise DataError(f"{path} is {noun}, not a text file. Save the list as CSV in UTF-8.")
    return _decode(data, path, language)


def _refuse_odd_file(path: Path) -> None:
    """Refuse pipes, devices and huge files, which would block or fill the memory."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise DataError(f"{path} is a pipe or a device, not a file. Enter the path of a CSV.")
    if found.st_size > _MAX_BYTES:
        raise DataError(
            f"{path} has {found.st_size / GIB:.1f} GB; the limit for a list is "
            f"{_MAX_BYTES / GIB:.0f} GB. Check that it is a list, and split it."
        )


def is_damaged(text: str) -> bool:
    """Return whether the text contains bytes that could not be decoded."""
    return _DAMAGED.search(text) is not None


def _decode(data: bytes, path: Path, language: str) -> tuple[str, str]:
    encoding = next((name for bom, name in _BOMS if data.startswith(bom)), None)
    encoding = encoding or _utf16_without_bom(data)
    if encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        try:
            return data.decode(encoding), encoding
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path} looks like {encoding} but is damaged at byte {error.start}. "
                "Save it again as UTF-8."
            ) from None
    encoding = encoding or "utf-8"
    try:
        return data.decode(encoding), encoding
    except UnicodeDecodeError:
        pass
    if _is_mostly_utf8(data):
        return data.decode(encoding, errors="surrogateescape"), encoding
    first = {"ja": "cp932", "zh": "gb18030"}.get(language[:2].lower())
    for name, letters in sorted(_LEGACY, key=lambda legacy: legacy[0] != first):
        text = _decode_legacy(data, name, letters)
        if text is not None:
            return text, name
    raise DataError(
        f"{path} is not in UTF-8, UTF-16 or a known Korean, Japanese or Chinese encoding. "
        "Save it again as UTF-8."
    )


def _utf16_without_bom(data: bytes) -> str | None:
    sample = data[:65536]
    even, odd = sample[0::2].count(0), sample[1::2].count(0)
    # Separators, digits and line ends are ASCII, so in UTF-16 one byte of each pair is often
    # zero. The factors 50 and 20 are chosen by hand: other encodings have no zeros at all.
    if even + odd < len(sample) / 50 or len(data) % 2:
        return None
    if odd > 20 * even:
        return "utf-16-le"
    return "utf-16-be" if even > 20 * odd else None


def _is_mostly_utf8(data: bytes) -> bool:
    # Judged by line: in another encoding, hardly any line with foreign letters is valid UTF-8.
    foreign = [line for line in re.split(rb"[\r\n]+", data) if not line.isascii()]
    valid = 0
    for line in foreign:
        try:
            line.decode("utf-8")
            valid += 1
        except UnicodeDecodeError:
            continue
    return valid * 2 >= len(foreign)


def _decode_legacy(data: bytes, encoding: str, letters: re.Pattern[str]) -> str | None:
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        return None
    foreign = _FOREIGN.findall(text)
    found = letters.findall(text)
    if encoding == "cp949":
        # Korean text uses the 2350 common syllables of KS X 1001 (both bytes >= 0xA1); text in
        # another encoding decodes to the rare ones.
        found = [letter for letter in found if min(letter.encode("cp949")) >= 0xA1]
    believed = len(found) >= 0.8 * len(foreign)
    # In Western text, an accented letter and the ASCII letter after it decode to a single
    # ideograph; real text in these scripts has runs of them. 0.8 and 0.5 are chosen by hand.
    runs = sum(len(run) for run in re.findall("[^\x00-\x7f]{2,}", text))
    if encoding == "cp932" and not _KANA.search(text):
        return None
    return text if believed and runs >= 0.5 * len(foreign) else None

"""Unpack the lists and clips of an untrusted ZIP archive into a new folder.

Names in the archive are untrusted: none may escape the folder, shadow another file or be a link.
Sizes are counted while unpacking, because the sizes that an archive declares can be false.
"""

import os
import re
import shutil
import stat
import unicodedata
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trainer.core.device import GIB, MIB
from trainer.core.errors import DataError
from trainer.data.lists.rows import AUDIO_EXTENSIONS

KEPT_ENDINGS = (
    *AUDIO_EXTENSIONS, ".csv", ".tsv", ".txt", ".list", ".jsonl", ".ndjson", ".json", ".npy",
)  # fmt: skip
"""Extensions of dataset files; all other files are not unpacked."""

_JUNK = re.compile(r"(?:^|/)(?:__MACOSX/|\._|\.DS_Store$|Thumbs\.db$|desktop\.ini$)", re.I)
_DRIVE = re.compile(r"^[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_UTF8_FLAG, _ENCRYPTED_FLAG = 0x800, 0x1
_CHUNK_BYTES = MIB
_SMALL_BYTES = MIB  # Below 1 MiB, a high ratio is harmless: text lists compress well.
_TAIL_BYTES = 2**17  # The end record is 22 bytes plus a comment of at most 64 KiB.
_MAX_INDEX_BYTES = 2**25  # 32 MiB: about 160 bytes for each of `max_files` entries.


@dataclass(frozen=True)
class Limits:
    """How large an archive may be; `max_ratio` is unpacked to packed bytes."""

    # Chosen by hand, well above any dataset for fine-tuning. Audio hardly compresses, and text
    # rarely by more than 10:1, so a ratio of 100 only stops archive bombs.
    max_bytes: int = 64 * GIB
    max_files: int = 200_000
    max_depth: int = 16
    max_ratio: float = 100.0
    reserve_bytes: int = GIB


@dataclass(frozen=True)
class Unpacked:
    """The new folder, the number of files in it, and the refused members with the reasons."""

    folder: Path
    num_files: int
    refused: dict[str, str]


class _Refused(Exception):
    """A member is not unpacked; the message says why."""


def unpack(archive: Path, folder: Path, limits: Limits | None = None) -> Unpacked:
    """Unpack the lists and clips of a ZIP into a folder that does not exist yet.

    The folder appears only when it is complete; a refused archive leaves nothing behind.

    Raises:
        DataError: the file is not a ZIP, is encrypted, too large, or has no list and no clip.
    """
    limits = limits or Limits()
    partial = folder.with_name(f".{folder.name}.part")
    try:
        _check_index(archive)
        with zipfile.ZipFile(archive) as opened:
            members = [member for member in opened.infolist() if not member.is_dir()]
            _check_claims(archive.name, members, limits, partial)
            unpacked = _take_out(opened, members, partial, limits)
        if not unpacked.num_files:
            raise DataError(_nothing(archive.name, unpacked))
        # One rename, so that nothing ever sees an incomplete folder.
        os.rename(partial, folder)
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise DataError(
            f"{archive.name} is not a ZIP archive, or is damaged ({str(error)[:100]}). Create the "
            "ZIP again, or upload the files themselves."
        ) from None
    except OSError as error:
        raise DataError(
            f"{archive.name} cannot be unpacked: {error.strerror or error}. Check that the disk "
            "has free space."
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Unpacked(folder, unpacked.num_files, unpacked.refused)


def _check_index(archive: Path) -> None:
    """Refuse an archive with a huge index, because zipfile reads the whole index into memory."""
    with open(archive, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or end + 22 > len(tail):
        raise zipfile.BadZipFile("no end record")
    size = int.from_bytes(tail[end + 12 : end + 16], "little")
    wide = tail.rfind(b"PK\x06\x06", 0, end)
    if wide >= 0 and wide + 56 <= len(tail):
        # 0xFFFFFFFF refers to the ZIP64 record; the remainder turns it into 0.
        size = max(size % 0xFFFFFFFF, int.from_bytes(tail[wide + 40 : wide + 48], "little"))
    if size > _MAX_INDEX_BYTES:
        raise DataError(
            f"The index of {archive.name} has {size / MIB:.0f} MB; the limit is "
            f"{_MAX_INDEX_BYTES / MIB:.0f} MB. Split the archive."
        )


def _check_claims(name: str, members: list[zipfile.ZipInfo], limits: Limits, target: Path) -> None:
    """Check the sizes and flags that an archive declares before anything is unpacked."""
    if any(member.flag_bits & _ENCRYPTED_FLAG for member in members):
        raise DataError(f"{name} is encrypted. Create it without a password.")
    if len(members) > limits.max_files:
        raise DataError(
            f"{name} has {len(members)} files; the limit is {limits.max_files}. Split it."
        )
    claimed = sum(member.file_size for member in members)
    packed = sum(member.compress_size for member in members)
    if claimed > _SMALL_BYTES and claimed > limits.max_ratio * max(packed, 1):
        raise DataError(_bomb(name, claimed))
    free = shutil.disk_usage(target.parent).free - limits.reserve_bytes
    if claimed > min(limits.max_bytes, free):
        raise DataError(
            f"{name} unpacks to {claimed / GIB:.1f} GB; there is room for "
            f"{max(0, min(limits.max_bytes, free)) / GIB:.1f} GB. Free some space, or unpack it "
            "elsewhere and enter the folder."
        )


def _take_out(
    opened: zipfile.ZipFile, members: list[zipfile.ZipInfo], folder: Path, limits: Limits
) -> Unpacked:
    folder.mkdir(parents=True)
    refused: dict[str, str] = {}
    taken: dict[str, str] = {}
    left, num_files = limits.max_bytes, 0
    for member in members:
        name = _true_name(member)
        if _JUNK.search(name):
            continue
        try:
            parts = _safe_parts(member, name, limits)
            _claim(taken, parts)
            left -= _copy(opened, member, folder.joinpath(*parts), min(left, _most(member, limits)))
            num_files += 1
        except _Refused as error:
            refused[_CONTROL.sub("\ufffd", name)[:200]] = str(error)
    return Unpacked(folder, num_files, refused)


def _safe_parts(member: zipfile.ZipInfo, name: str, limits: Limits) -> tuple[str, ...]:
    """Return the path parts of a member relative to the new folder, or raise `_Refused`."""
    # Some Windows tools write backslashes, and would hide ".." from the check below.
    path = name.replace("\\", "/")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise _Refused("it is a link")
    if path.startswith("/") or _DRIVE.match(path):
        raise _Refused("its path is absolute")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise _Refused("its path leads out of the archive")
    if _CONTROL.search(path) or any("\ud800" <= letter <= "\udfff" for letter in path):
        raise _Refused("its name contains control characters")
    if not path.lower().endswith(KEPT_ENDINGS):
        raise _Refused("it is neither a clip nor a list")
    if len(parts) > limits.max_depth:
        raise _Refused(f"it is more than {limits.max_depth} folders deep")
    if any(len(part.encode()) > 255 for part in parts):
        raise _Refused("its name is longer than 255 bytes")
    # macOS stores names decomposed (NFD); lists are read as NFC.
    return tuple(unicodedata.normalize("NFC", part) for part in parts)


def _claim(taken: dict[str, str], parts: tuple[str, ...]) -> None:
    """Reserve a path; refuse one that differs from another only in case.

    On a case-insensitive file system, the second file would overwrite the first.
    """
    path = "/".join(parts)
    key = path.casefold()
    if key in taken:
        alike = "" if taken[key] == path else f" by {taken[key]}, which differs only in case"
        raise _Refused(f"its name is already taken{alike}")
    taken[key] = path


def _most(member: zipfile.ZipInfo, limits: Limits) -> int:
    """Return the most bytes a member may unpack to: its declared size, within the ratio."""
    return min(member.file_size, int(limits.max_ratio * member.compress_size) + _SMALL_BYTES)


def _copy(opened: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, most: int) -> int:
    """Unpack a member and return its size in bytes; a refused member leaves no file."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Never write over a file of an earlier member, nor through a link.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(target, flags, 0o644)
    except (FileExistsError, NotADirectoryError):
        raise _Refused("its name conflicts with another file or folder of the archive") from None
    try:
        with os.fdopen(descriptor, "wb") as file, opened.open(member) as source:
            return _stream(source, file, most)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error):
        target.unlink(missing_ok=True)
        raise _Refused("it is damaged or uses an unsupported compression") from None
    except _Refused:
        target.unlink(missing_ok=True)
        raise


def _stream(source: IO[bytes], file: IO[bytes], most: int) -> int:
    written = 0
    while chunk := source.read(_CHUNK_BYTES):
        written += len(chunk)
        if written > most:
            raise _Refused("it unpacks to more than its declared size")
        file.write(chunk)
    return written


def _true_name(member: zipfile.ZipInfo) -> str:
    """Return a member's name with the right encoding.

    Without the UTF-8 flag, names should be CP437, but many tools write UTF-8 or, in Korea, CP949.
    """
    name = member.orig_filename
    if member.flag_bits & _UTF8_FLAG or name.isascii():
        return name
    try:
        raw = name.encode("cp437")
    except UnicodeEncodeError:
        return name
    for encoding in ("utf-8", "cp949"):
        try:
            decoded = raw.decode(encoding)
        except UnicodeDecodeError:
            continue
        # Most bytes are valid CP949; without Hangul it was another encoding.
        if encoding == "utf-8" or _HANGUL.search(decoded):
            return decoded
    return name


def _bomb(name: str, claimed: int) -> str:
    return (
        f"{name} unpacks to {claimed / MIB:.0f} MB, over a hundred times its size, which "
        "recordings never do. Nothing was unpacked."
    )


def _nothing(name: str, unpacked: Unpacked) -> str:
    first = next((f" ({name}: {why})" for name, why in unpacked.refused.items()), "")
    return (
        f"{name} contains no usable clip or list{first}. Expected WAV, FLAC, OGG or MP3 files and "
        "a CSV with an audio file and its text on each line."
    )

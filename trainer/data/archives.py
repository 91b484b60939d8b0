"""Archives: a ZIP from anywhere -> a new folder with its lists and clips, and nothing else.

Names in an archive are claims of a stranger: none may lead out of the folder, hide another or be a
link, and sizes are counted while bytes come out, whatever the archive says of itself.
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

from trainer.data.rows import AUDIO_EXTENSIONS
from trainer.errors import DataError

KEPT_ENDINGS = (
    *AUDIO_EXTENSIONS, ".csv", ".tsv", ".txt", ".list", ".jsonl", ".ndjson", ".json", ".npy",
)  # fmt: skip
"""What a dataset is made of; everything else stays in the archive."""

_JUNK = re.compile(r"(?:^|/)(?:__MACOSX/|\._|\.DS_Store$|Thumbs\.db$|desktop\.ini$)", re.I)
_DRIVE = re.compile(r"^[A-Za-z]:")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_HANGUL = re.compile("[\uac00-\ud7a3]")
_UTF8_FLAG, _ENCRYPTED_FLAG = 0x800, 0x1
_CHUNK_BYTES = 2**20
_SMALL_BYTES = 2**20
_TAIL_BYTES = 2**17
_MAX_INDEX_BYTES = 2**25


@dataclass(frozen=True)
class Limits:
    """How large an archive may become; the ratio is that of unpacked to packed bytes."""

    max_bytes: int = 64 * 2**30
    max_files: int = 200_000
    max_depth: int = 16
    max_ratio: float = 100.0
    reserve_bytes: int = 2**30


@dataclass(frozen=True)
class Unpacked:
    """The folder with what was taken out, and the names that were left in, with the reason."""

    folder: Path
    num_files: int
    refused: dict[str, str]


class _Refused(Exception):
    """A member that stays in the archive; says why."""


def unpack(archive: Path, folder: Path, limits: Limits | None = None) -> Unpacked:
    """Take lists and clips out of a ZIP into a folder that does not exist yet.

    The folder appears when it is whole; an archive that is refused leaves nothing behind.

    Raises:
        DataError: the file is no ZIP, asks for a password, unpacks to more than it should, or holds
            nothing of use.
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
        os.rename(partial, folder)
    except (zipfile.BadZipFile, EOFError, ValueError) as error:
        raise DataError(
            f"{archive.name} is no ZIP archive, or damaged ({str(error)[:100]}). Pack the clips "
            "and their list as ZIP again, or drop the files themselves."
        ) from None
    except OSError as error:
        raise DataError(
            f"{archive.name} could not be unpacked: {error.strerror or error}. Free some space."
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return Unpacked(folder, unpacked.num_files, unpacked.refused)


def _check_index(archive: Path) -> None:
    """Refuse an archive whose index alone would fill the memory; it is read whole by zipfile."""
    with open(archive, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        tail = file.read()
    end = tail.rfind(b"PK\x05\x06")
    if end < 0 or end + 22 > len(tail):
        raise zipfile.BadZipFile("it has no end")
    size = int.from_bytes(tail[end + 12 : end + 16], "little")
    wide = tail.rfind(b"PK\x06\x06", 0, end)
    if wide >= 0 and wide + 56 <= len(tail):
        size = max(size % 0xFFFFFFFF, int.from_bytes(tail[wide + 40 : wide + 48], "little"))
    if size > _MAX_INDEX_BYTES:
        raise DataError(
            f"The index of {archive.name} takes {size / 2**20:.0f} MB, more than any dataset's. "
            "Split the archive."
        )


def _check_claims(name: str, members: list[zipfile.ZipInfo], limits: Limits, target: Path) -> None:
    """Refuse an archive by what it says of itself, before a byte comes out."""
    if any(member.flag_bits & _ENCRYPTED_FLAG for member in members):
        raise DataError(f"{name} asks for a password. Pack it without one.")
    if len(members) > limits.max_files:
        raise DataError(
            f"{name} holds {len(members)} files; {limits.max_files} are the most. Split it."
        )
    claimed = sum(member.file_size for member in members)
    packed = sum(member.compress_size for member in members)
    if claimed > _SMALL_BYTES and claimed > limits.max_ratio * max(packed, 1):
        raise DataError(_bomb(name, claimed))
    free = shutil.disk_usage(target.parent).free - limits.reserve_bytes
    if claimed > min(limits.max_bytes, free):
        raise DataError(
            f"{name} unpacks to {claimed / 2**30:.1f} GB; there is room for "
            f"{max(0, min(limits.max_bytes, free)) / 2**30:.1f} GB. Free some space, or unpack it "
            "elsewhere and type its folder."
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
    """Return the folders and the file that a member becomes, below the new folder."""
    path = name.replace("\\", "/")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise _Refused("it is a link")
    if path.startswith("/") or _DRIVE.match(path):
        raise _Refused("it names a place outside the archive")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise _Refused("it leads out of the archive")
    if _CONTROL.search(path) or any("\ud800" <= letter <= "\udfff" for letter in path):
        raise _Refused("its name holds control characters")
    if not path.lower().endswith(KEPT_ENDINGS):
        raise _Refused("it is neither a clip nor a list")
    if len(parts) > limits.max_depth:
        raise _Refused(f"it lies more than {limits.max_depth} folders deep")
    if any(len(part.encode()) > 255 for part in parts):
        raise _Refused("its name is longer than 255 bytes")
    return tuple(unicodedata.normalize("NFC", part) for part in parts)


def _claim(taken: dict[str, str], parts: tuple[str, ...]) -> None:
    """Take a name that no other member has, also not in another case or as a folder."""
    path = "/".join(parts)
    key = path.casefold()
    if key in taken:
        alike = "" if taken[key] == path else f", but for its case, as {taken[key]}"
        raise _Refused(f"its name is taken already{alike}")
    taken[key] = path


def _most(member: zipfile.ZipInfo, limits: Limits) -> int:
    """Return how many bytes a member may yield: what it claims, and no bomb."""
    return min(member.file_size, int(limits.max_ratio * member.compress_size) + _SMALL_BYTES)


def _copy(opened: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, most: int) -> int:
    """Write a member's bytes and return their number; one that is refused leaves no file."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(target, flags, 0o644)
    except (FileExistsError, NotADirectoryError):
        raise _Refused("another file of the archive is called like one of its folders") from None
    try:
        with os.fdopen(descriptor, "wb") as file, opened.open(member) as source:
            return _stream(source, file, most)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error):
        target.unlink(missing_ok=True)
        raise _Refused("its bytes are damaged or packed in an unusual way") from None
    except _Refused:
        target.unlink(missing_ok=True)
        raise


def _stream(source: IO[bytes], file: IO[bytes], most: int) -> int:
    written = 0
    while chunk := source.read(_CHUNK_BYTES):
        written += len(chunk)
        if written > most:
            raise _Refused("it unpacks to far more than its size")
        file.write(chunk)
    return written


def _true_name(member: zipfile.ZipInfo) -> str:
    """Return a member's name; old packers wrote their country's code page without saying so."""
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
        if encoding == "utf-8" or _HANGUL.search(decoded):
            return decoded
    return name


def _bomb(name: str, claimed: int) -> str:
    return (
        f"{name} unpacks to {claimed / 2**20:.0f} MB, over a hundred times its size: no recordings "
        "do that. Nothing of it was unpacked."
    )


def _nothing(name: str, unpacked: Unpacked) -> str:
    first = next((f" ({name}: {why})" for name, why in unpacked.refused.items()), "")
    return (
        f"{name} holds no clip and no list that can be used{first}. Expected WAV, FLAC, OGG or MP3 "
        "files and a CSV with an audio file and its text on every line."
    )

"""Store named arrays of many clips in one memory-mapped file (a pack).

Layout: header, arrays aligned to 64 bytes, index (JSON). The header has the position and the
checksum of the index and the size of the file; the index has a checksum of each array, which is
verified on first access. An array can refer to another pack instead of being stored twice.
Unlike a pickle, a pack cannot contain code.
"""

import bisect
import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from trainer.core.errors import DataError
from trainer.core.types import Features

_MAGIC = b"TIMBRE02"
_HEAD = struct.Struct("<8sQQQI28x")  # magic, index start and length, file size, CRC; 64 bytes
_ALIGN = 64  # A cache line, and enough for any SIMD load.


class DamagedFile(Exception):
    """The file is incomplete or corrupt; the cache recomputes its entries."""


class DamagedFeatures(DataError):
    """An array is corrupt; its file has been removed, and a restart recomputes it."""

    exit_code = 30


@dataclass(frozen=True)
class ArrayLocation:
    """The location and type of an array; an empty `pack` means the same file."""

    pack: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    crc: int


class ArrayFile:
    """A memory-mapped file of read-only arrays, by group and name."""

    def __init__(self, path: Path) -> None:
        """Map a file.

        Raises:
            DamagedFile: it does not exist, is truncated, or its index is corrupt.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            magic, start, length, size, crc = _HEAD.unpack_from(self._map)
            index = self._map[start : start + length]
            # A file that was copied only in part keeps its header, so the size is checked too.
            if magic != _MAGIC or size != len(self._map) or zlib.crc32(index) != crc:
                raise DamagedFile(f"{path} is damaged.")
            content = json.loads(index)
            self.facts: Any = content["facts"]
            self._groups: dict[str, dict[str, list[Any]]] = content["groups"]
        except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
            raise DamagedFile(f"{path} is damaged: {error}.") from None
        self.address = np.frombuffer(self._map, np.uint8).ctypes.data
        self.size = len(self._map)
        self._by_offset: dict[int, ArrayLocation] = {}

    @property
    def groups(self) -> list[str]:
        """The names of the groups, in the order they were written."""
        return list(self._groups)

    def locations(self, group: str) -> dict[str, ArrayLocation]:
        """Return the locations of a group's arrays, by name."""
        return {
            name: ArrayLocation(pack, offset, dtype, tuple(shape), crc)
            for name, (pack, offset, dtype, shape, crc) in self._groups[group].items()
        }

    def view(self, place: ArrayLocation) -> np.ndarray:
        """Return a view of an array in this file, without reading its data."""
        count = int(np.prod(place.shape, dtype=np.int64))
        flat = np.frombuffer(self._map, np.dtype(place.dtype), count, place.offset)
        return flat.reshape(place.shape)

    def location_of(self, array: np.ndarray) -> ArrayLocation | None:
        """Return the location of an array if it is exactly one of this file's arrays, else None."""
        # Built on first use, because only a survey that refers to arrays needs it.
        if not self._by_offset:
            every = [place for group in self._groups for place in self.locations(group).values()]
            self._by_offset = {place.offset: place for place in every if not place.pack}
        place = self._by_offset.get(array.ctypes.data - self.address)
        is_same = place is not None and (place.dtype, place.shape) == (
            array.dtype.str,
            array.shape,
        )
        # An empty array has the offset of the next one, and a strided view other contents.
        return place if is_same and array.flags.c_contiguous and array.size else None

    def remove(self) -> None:
        """Delete the file; existing views stay readable."""
        with suppress(OSError):
            self.path.unlink()


class CheckedArrays(dict[str, np.ndarray]):
    """The arrays of a clip; each array's checksum is verified on first access."""

    def __init__(self, group: str, found: Mapping[str, tuple[ArrayFile, ArrayLocation]]) -> None:
        super().__init__({name: pack.view(place) for name, (pack, place) in found.items()})
        self._group = group
        self._unchecked = dict(found)

    def __getitem__(self, name: str) -> np.ndarray:
        array = super().__getitem__(name)
        if name in self._unchecked:
            pack, place = self._unchecked[name]
            if zlib.crc32(array.data) != place.crc:
                # Before the error, so that the restart cannot map the same damage again.
                pack.remove()
                raise DamagedFeatures(
                    f"The cached features of clip {self._group} in {pack.path} are damaged. The "
                    "file has been removed; Resume recomputes the features and continues."
                )
            del self._unchecked[name]
        return array

    # `get`, `items` and `values` of a dict bypass `__getitem__`, and with it the check.
    def get(self, name: str, default: Any = None) -> Any:
        """Return a verified array, or the default."""
        if name not in self:
            return default
        return self[name]

    def __or__(self, other: Any) -> Any:
        return {name: self[name] for name in self} | other

    def items(self) -> Any:
        """Return names and arrays, all verified."""
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        """Return the arrays, all verified."""
        return {name: self[name] for name in self}.values()


class ArrayFileWriter:
    """Writes a pack, array by array; the file appears under its name only when complete.

    An array that is already stored in a pack of `lenders` is referenced instead of copied.
    """

    def __init__(self, path: Path, mapped_files: "MappedFiles | None" = None) -> None:
        """Open a temporary file.

        Raises:
            OSError: the disk is full or read-only; the other methods raise it too.
        """
        self.path = path
        self.size = _HEAD.size
        self._mapped_files = mapped_files
        self._groups: dict[str, dict[str, list[Any]]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False)  # noqa: SIM115
        self._file.seek(_HEAD.size)

    def add(self, group: str, arrays: Features) -> None:
        """Write the arrays of a group."""
        self._groups[group] = {name: self._write(array) for name, array in arrays.items()}

    def finish(self, facts: Any) -> None:
        """Write facts (JSON) and the index, and rename the file to its final name."""
        index = json.dumps({"facts": facts, "groups": self._groups}).encode()
        self._file.write(index)
        self._file.seek(0)
        size = self.size + len(index)
        self._file.write(_HEAD.pack(_MAGIC, self.size, len(index), size, zlib.crc32(index)))
        self._file.close()
        # No fsync: a pack that a power failure damages is detected and computed again.
        os.replace(self._file.name, self.path)

    def abandon(self) -> None:
        """Remove the temporary file; does nothing after `finish`."""
        with suppress(OSError):
            self._file.close()
        Path(self._file.name).unlink(missing_ok=True)

    def _write(self, array: np.ndarray) -> list[Any]:
        lent = self._mapped_files.location_of(array) if self._mapped_files is not None else None
        if lent is not None:
            return [lent.pack, lent.offset, lent.dtype, list(lent.shape), lent.crc]
        data = np.ascontiguousarray(array).tobytes()
        place = ["", self.size, array.dtype.str, list(np.shape(array)), zlib.crc32(data)]
        padding = -len(data) % _ALIGN
        self._file.write(data + b"\0" * padding)
        self.size += len(data) + padding
        return place


class MappedFiles:
    """Open packs whose arrays other packs can refer to, found by memory address."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packs: dict[str, ArrayFile] = {}
        self._starts: list[int] = []
        self._by_start: dict[int, str] = {}

    def open(self, path: Path) -> ArrayFile:
        """Return a pack in the folder, mapped once.

        Raises:
            DamagedFile: it does not exist or is corrupt.
        """
        name = str(path.relative_to(self._folder))
        if name not in self._packs:
            pack = ArrayFile(path)
            self._packs[name] = pack
            self._by_start[pack.address] = name
            bisect.insort(self._starts, pack.address)
        return self._packs[name]

    def location_of(self, array: np.ndarray) -> ArrayLocation | None:
        """Return the location of an array if it is stored in one of the packs, else None."""
        # Maps do not overlap, so only the last one that starts before the address can hold it.
        at = bisect.bisect_right(self._starts, array.ctypes.data) - 1
        if at < 0:
            return None
        name = self._by_start[self._starts[at]]
        place = self._packs[name].location_of(array)
        return (
            ArrayLocation(name, place.offset, place.dtype, place.shape, place.crc)
            if place
            else None
        )

    def arrays(self, pack: ArrayFile, group: str) -> CheckedArrays:
        """Return the arrays of a group, including those that are stored in other packs.

        Raises:
            DamagedFile: another pack is missing or corrupt.
        """
        places = pack.locations(group)
        lent = {name: self._file_of(place, pack) for name, place in places.items()}
        return CheckedArrays(group, {name: (lent[name], places[name]) for name in places})

    def _file_of(self, place: ArrayLocation, pack: ArrayFile) -> ArrayFile:
        if not place.pack:
            return pack
        lender = self.open(self._folder / place.pack)
        if place.offset >= lender.size:
            raise DamagedFile(f"{lender.path} has been replaced.")
        return lender

"""Packs: named arrays of many clips in one file that is mapped, so that no memory is filled.

Layout: header, arrays at multiples of 64 bytes, index (JSON). The header holds where the index is,
its checksum and the size of the file; the index holds a checksum of every array, which is compared
when the array is first looked at. An array may lie in another pack, and is then not stored twice.
Nothing in a pack is executable.
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

from trainer.data.types import Features
from trainer.errors import DataError

_MAGIC = b"TIMBRE02"
_HEAD = struct.Struct("<8sQQQI28x")
_ALIGN = 64


class DamagedFile(Exception):
    """The file is not complete or not what was written; a cache computes it again."""


class DamagedFeatures(DataError):
    """An array is not what was written; its file is gone now, and a new start computes it again."""

    exit_code = 30


@dataclass(frozen=True)
class Place:
    """Where an array lies (an empty pack: in the same file) and what it is."""

    pack: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    crc: int


class Pack:
    """A mapped file of arrays by group and name; its arrays cannot be written to."""

    def __init__(self, path: Path) -> None:
        """Map a file.

        Raises:
            DamagedFile: it is absent, cut, or its index is not what was written.
        """
        self.path = path
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            magic, start, length, size, crc = _HEAD.unpack_from(self._map)
            index = self._map[start : start + length]
            if magic != _MAGIC or size != len(self._map) or zlib.crc32(index) != crc:
                raise DamagedFile(f"{path} is damaged.")
            content = json.loads(index)
            self.facts: Any = content["facts"]
            self._groups: dict[str, dict[str, list[Any]]] = content["groups"]
        except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
            raise DamagedFile(f"{path} is damaged: {error}.") from None
        self.address = np.frombuffer(self._map, np.uint8).ctypes.data
        self.size = len(self._map)
        self._by_offset: dict[int, Place] = {}

    @property
    def groups(self) -> list[str]:
        """The names of its groups, in the order they were written."""
        return list(self._groups)

    def places(self, group: str) -> dict[str, Place]:
        """Return where the arrays of a group lie."""
        return {
            name: Place(pack, offset, dtype, tuple(shape), crc)
            for name, (pack, offset, dtype, shape, crc) in self._groups[group].items()
        }

    def view(self, place: Place) -> np.ndarray:
        """Return an array of this file without reading it."""
        count = int(np.prod(place.shape, dtype=np.int64))
        flat = np.frombuffer(self._map, np.dtype(place.dtype), count, place.offset)
        return flat.reshape(place.shape)

    def place_of(self, array: np.ndarray) -> Place | None:
        """Return where an array lies that is one of this file's, as a whole."""
        if not self._by_offset:
            every = [place for group in self._groups for place in self.places(group).values()]
            self._by_offset = {place.offset: place for place in every if not place.pack}
        place = self._by_offset.get(array.ctypes.data - self.address)
        is_same = place is not None and (place.dtype, place.shape) == (
            array.dtype.str,
            array.shape,
        )
        return place if is_same and array.flags.c_contiguous and array.size else None

    def remove(self) -> None:
        """Delete the file; what is mapped stays readable."""
        with suppress(OSError):
            self.path.unlink()


class CheckedArrays(dict[str, np.ndarray]):
    """The arrays of a clip; each is compared with its checksum when it is first looked at."""

    def __init__(self, group: str, found: Mapping[str, tuple[Pack, Place]]) -> None:
        super().__init__({name: pack.view(place) for name, (pack, place) in found.items()})
        self._group = group
        self._unchecked = dict(found)

    def __getitem__(self, name: str) -> np.ndarray:
        array = super().__getitem__(name)
        if name in self._unchecked:
            pack, place = self._unchecked[name]
            if zlib.crc32(array.data) != place.crc:
                pack.remove()
                raise DamagedFeatures(
                    f"The cached features of clip {self._group} in {pack.path} are damaged. The "
                    "file is removed; Resume computes them anew and goes on."
                )
            del self._unchecked[name]
        return array

    def get(self, name: str, default: Any = None) -> Any:
        """Return an array, checked, or the default."""
        if name not in self:
            return default
        return self[name]

    def __or__(self, other: Any) -> Any:
        return {name: self[name] for name in self} | other

    def items(self) -> Any:
        """Return names and arrays, all of them checked."""
        return {name: self[name] for name in self}.items()

    def values(self) -> Any:
        """Return the arrays, all of them checked."""
        return {name: self[name] for name in self}.values()


class PackWriter:
    """Writes a pack, array by array; readers see the whole file or nothing.

    An array that lies in one of `lenders` as it is, is noted there instead of being stored again.
    """

    def __init__(self, path: Path, lenders: "Lenders | None" = None) -> None:
        """Begin.

        Raises:
            OSError: the disk is full or closed to writing; so do the methods.
        """
        self.path = path
        self.size = _HEAD.size
        self._lenders = lenders
        self._groups: dict[str, dict[str, list[Any]]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False)  # noqa: SIM115
        self._file.seek(_HEAD.size)

    def add(self, group: str, arrays: Features) -> None:
        """Write the arrays of a group."""
        self._groups[group] = {name: self._write(array) for name, array in arrays.items()}

    def finish(self, facts: Any) -> None:
        """Write facts (JSON) and the index, and give the file its name."""
        index = json.dumps({"facts": facts, "groups": self._groups}).encode()
        self._file.write(index)
        self._file.seek(0)
        size = self.size + len(index)
        self._file.write(_HEAD.pack(_MAGIC, self.size, len(index), size, zlib.crc32(index)))
        self._file.close()
        os.replace(self._file.name, self.path)

    def abandon(self) -> None:
        """Remove what was written; after `finish` there is nothing to remove."""
        with suppress(OSError):
            self._file.close()
        Path(self._file.name).unlink(missing_ok=True)

    def _write(self, array: np.ndarray) -> list[Any]:
        lent = self._lenders.place_of(array) if self._lenders is not None else None
        if lent is not None:
            return [lent.pack, lent.offset, lent.dtype, list(lent.shape), lent.crc]
        data = np.ascontiguousarray(array).tobytes()
        place = ["", self.size, array.dtype.str, list(np.shape(array)), zlib.crc32(data)]
        padding = -len(data) % _ALIGN
        self._file.write(data + b"\0" * padding)
        self.size += len(data) + padding
        return place


class Lenders:
    """Packs whose arrays other packs may refer to, found by where they are in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._packs: dict[str, Pack] = {}
        self._starts: list[int] = []
        self._by_start: dict[int, str] = {}

    def open(self, path: Path) -> Pack:
        """Return a pack below the folder, mapped once.

        Raises:
            DamagedFile: it is absent or damaged.
        """
        name = str(path.relative_to(self._folder))
        if name not in self._packs:
            pack = Pack(path)
            self._packs[name] = pack
            self._by_start[pack.address] = name
            bisect.insort(self._starts, pack.address)
        return self._packs[name]

    def place_of(self, array: np.ndarray) -> Place | None:
        """Return where an array lies as a whole in one of the packs, with the pack's name."""
        at = bisect.bisect_right(self._starts, array.ctypes.data) - 1
        if at < 0:
            return None
        name = self._by_start[self._starts[at]]
        place = self._packs[name].place_of(array)
        return Place(name, place.offset, place.dtype, place.shape, place.crc) if place else None

    def arrays(self, pack: Pack, group: str) -> CheckedArrays:
        """Return the arrays of a group, those that were lent included.

        Raises:
            DamagedFile: a pack that lends is gone or damaged.
        """
        places = pack.places(group)
        lent = {name: self._lender(place, pack) for name, place in places.items()}
        return CheckedArrays(group, {name: (lent[name], places[name]) for name in places})

    def _lender(self, place: Place, pack: Pack) -> Pack:
        if not place.pack:
            return pack
        lender = self.open(self._folder / place.pack)
        if place.offset >= lender.size:
            raise DamagedFile(f"{lender.path} is not the file it was.")
        return lender

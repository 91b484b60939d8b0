"""Store named arrays of many clips in one memory-mapped safetensors file.

safetensors maps a file instead of reading it, and rejects one that is truncated. It has no
checksums, so the metadata holds one of each array, which is verified when the array is first used.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from trainer.core.atomic_io import replacing
from trainer.core.errors import DataError
from trainer.core.types import Features


class DamagedFile(Exception):
    """The file is incomplete or corrupt; the cache recomputes its entries."""


class DamagedFeatures(DataError):
    """An array is corrupt; its file has been removed, and a restart recomputes it."""

    exit_code = 30


class _Index(TypedDict):
    """The metadata of a file: the CRC-32 of each array by group and name, and JSON facts."""

    checksums: dict[str, dict[str, int]]
    facts: dict[str, object]


class ArrayFile:
    """A memory-mapped file of read-only arrays, by group and name."""

    def __init__(self, path: Path) -> None:
        """Map a file.

        Raises:
            DamagedFile: it does not exist, is truncated, or its index is corrupt.
        """
        self.path = path
        try:
            # As torch tensors, which are views of the map; as numpy arrays they would be copies.
            self._file = safe_open(path, framework="pt")
            metadata = self._file.metadata()
            if zlib.crc32(metadata["index"].encode()) != int(metadata["crc"]):
                raise DamagedFile(f"{path} is damaged.")
            index: _Index = json.loads(metadata["index"])
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DamagedFile(f"{path} is damaged: {error}.") from None
        self.facts = index["facts"]
        self._checksums = index["checksums"]

    @property
    def groups(self) -> list[str]:
        """The names of the groups, in the order they were written."""
        return list(self._checksums)

    def arrays(self, group: str) -> "LazyArrays":
        """Return the arrays of a group, none of which is read yet."""
        return LazyArrays(dict.fromkeys(self._checksums[group], partial(self.read, group)))

    def read(self, group: str, name: str) -> np.ndarray:
        """Return a view of an array in this file.

        Raises:
            DamagedFeatures: its checksum is wrong; the file has been removed.
        """
        with suppress(SafetensorError):  # the name is damaged, and so not found
            array = self._file.get_tensor(f"{group}/{name}").numpy()
            if zlib.crc32(array.data) == self._checksums[group][name]:
                array.flags.writeable = False
                return array
        # Before the error, so that the restart cannot map the same damage again.
        with suppress(OSError):
            self.path.unlink()
        raise DamagedFeatures(
            f"The cached features of clip {group} in {self.path} are damaged. The file has been "
            "removed; Resume recomputes the features and continues."
        )


_UNREAD = np.empty(0)


class LazyArrays(dict[str, np.ndarray]):
    """The arrays of a clip; each is read on first access by the function under its name."""

    def __init__(self, readers: Mapping[str, Callable[[str], np.ndarray]]) -> None:
        super().__init__(dict.fromkeys(readers, _UNREAD))
        self._readers = readers

    def __getitem__(self, name: str) -> np.ndarray:
        array = super().__getitem__(name)
        if array is _UNREAD:
            array = self[name] = self._readers[name](name)
        return array

    def has_read(self, name: str, array: np.ndarray) -> bool:
        """Return whether this is the very array that was read under this name."""
        return super().get(name) is array

    # A dict's own would bypass `__getitem__`; its constructor and `|` do so without `__iter__`.
    get = Mapping.get  # type: ignore[assignment]
    items = Mapping.items  # type: ignore[assignment]
    values = Mapping.values  # type: ignore[assignment]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


def write_array_file(
    path: Path, groups: Mapping[str, Features], facts: Mapping[str, object]
) -> None:
    """Write groups of arrays, and facts (JSON); the file appears only when it is complete.

    Raises:
        OSError: the disk is full or read-only.
    """
    arrays: dict[str, np.ndarray] = {}
    checksums: dict[str, dict[str, int]] = {}
    for group, features in groups.items():
        checksums[group] = {}
        for name, array in features.items():
            # safetensors stores memory as it lies there.
            native = np.require(array, array.dtype.newbyteorder("="), "C")
            arrays[f"{group}/{name}"] = native
            checksums[group][name] = zlib.crc32(native.data)
    index = json.dumps({"checksums": checksums, "facts": facts})
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing(path) as unfinished:
            save_file(arrays, unfinished, {"index": index, "crc": str(zlib.crc32(index.encode()))})
    except SafetensorError as error:
        raise OSError(str(error)) from None

"""Arrays in one file: facts as JSON, features as raw bytes, a checksum over all of it.

Layout: magic, length of the index, checksum of the index and the arrays, index (JSON), arrays at
multiples of 64 bytes. Nothing in it is executable, and damage of any kind is noticed on reading.
"""

import json
import os
import struct
import zlib
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from trainer.data.types import Features

_MAGIC = b"TIMBRE01"
_HEAD = struct.Struct("<8sQI")
_ALIGN = 64


class DamagedFile(Exception):
    """The file is not complete or not what was written; a cache computes it again."""


def write_arrays(path: Path, facts: Any, features: dict[str, Features]) -> None:
    """Write facts (JSON) and named arrays so that readers see all of it or nothing.

    Raises:
        OSError: the disk is full or closed to writing.
    """
    places, offset = [], 0
    blocks = []
    for group, arrays in features.items():
        for name, array in arrays.items():
            block = np.ascontiguousarray(array)
            # ascontiguousarray turns a scalar into one element; the true shape goes in the index.
            places.append([group, name, block.dtype.str, list(np.shape(array)), offset])
            blocks.append(block)
            offset += -(-block.nbytes // _ALIGN) * _ALIGN
    index = json.dumps({"facts": facts, "groups": list(features), "arrays": places}).encode()
    index += b" " * (-(len(index) + _HEAD.size) % _ALIGN)
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        partial = Path(file.name)
        try:
            checksum = zlib.crc32(index)
            file.seek(_HEAD.size)
            file.write(index)
            for block in blocks:
                data = block.tobytes()
                data += b"\0" * (-len(data) % _ALIGN)
                checksum = zlib.crc32(data, checksum)
                file.write(data)
            file.seek(0)
            file.write(_HEAD.pack(_MAGIC, len(index), checksum))
            file.close()
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def read_arrays(path: Path) -> tuple[Any, dict[str, Features]]:
    """Read what `write_arrays` wrote; the arrays are writable views of one buffer.

    Raises:
        DamagedFile: the file is absent, cut, changed or of another format.
    """
    try:
        data = bytearray(path.read_bytes())
        magic, length, checksum = _HEAD.unpack_from(data)
        is_whole = magic == _MAGIC and zlib.crc32(memoryview(data)[_HEAD.size :]) == checksum
        if not is_whole:
            raise DamagedFile(f"{path} is damaged.")
        start = _HEAD.size + length
        index = json.loads(data[_HEAD.size : start])
        features: dict[str, Features] = {group: {} for group in index["groups"]}
        for group, name, dtype, shape, offset in index["arrays"]:
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(data, np.dtype(dtype), count, start + offset)
            features[group][name] = array.reshape(shape)
    except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{path} is damaged: {error}.") from None
    return index["facts"], features

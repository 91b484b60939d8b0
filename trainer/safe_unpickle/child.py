"""The child process that reads pickles with allow-listed classes and limited memory and time.

It runs as a separate script that imports torch but nothing of this project, so any damage a file
does ends with the process. torch reads with `weights_only=True`. Classes that genuine checkpoints
contain besides tensors are replaced by stand-ins that store their fields and have no behavior.
"""

import json
import math
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

TENSOR, CLASS, DROPPED = "$tensor", "$class", "$dropped"
"""Keys in values.json that mark a tensor's name, the class of an object, a dropped value."""

Routes = dict[str, tuple[str, str] | None]
"""Where tensors go: prefix of a name -> (file, new prefix), or None to drop the tensor."""

ALL: Routes = {"": ("tensors", "")}
"""Routes that write every tensor to tensors.safetensors under its own name."""

_MIB = 2**20
# Limits chosen by hand, well above what genuine checkpoints need: a few levels, some thousand
# entries and an index of a few MiB.
_MAX_DEPTH, _MAX_NODES = 32, 1_000_000
_MAX_PICKLE_BYTES = 64 * _MIB
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class Refused(Exception):
    """The file must not be converted; the message says why."""


# Stand-ins


class Inert:
    """An object of a known class, reduced to its fields."""

    path = ""

    def __new__(cls, *arguments: Any) -> "Inert":
        """Accept the arguments of the original's constructor and ignore them."""
        return super().__new__(cls)


class _Text(str):
    """A path, read as text."""

    def __new__(cls, *parts: Any) -> "_Text":
        return super().__new__(cls, "/".join(str(part) for part in parts))


class _Dtype:
    """Stands in for a numpy dtype; only plain numbers are accepted."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = str(code), "="

    def __setstate__(self, state: Any) -> None:
        self.order = {">": ">", "<": "<"}.get(str(state[1]), "=")

    def numpy(self) -> np.dtype[Any]:
        """Return the real dtype."""
        # Floats, signed and unsigned integers of 1 to 8 bytes, and booleans.
        if not re.fullmatch(r"[fiu][1248]|b1", self.code):
            raise Refused(
                f"it holds a numpy array of type {self.code[:40]!r}; only numbers are allowed"
            )
        return np.dtype(self.order + self.code)


class _Array:
    """Stands in for a numpy array; pickle sets its contents after construction."""

    def __init__(self, *_: Any) -> None:
        self.tensor = torch.zeros(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, is_fortran, data = state
        if not isinstance(dtype, _Dtype) or not isinstance(data, bytes):
            raise Refused("it holds a numpy array of objects; only numbers are allowed")
        order = "F" if is_fortran else "C"
        array = np.frombuffer(data, dtype.numpy()).reshape(shape, order=order)
        native = array.dtype.newbyteorder("=")
        self.tensor = torch.from_numpy(np.array(array, dtype=native, order="C"))


def _scalar(dtype: _Dtype, data: bytes) -> float | int | bool:
    return np.frombuffer(data, dtype.numpy())[0].item()


def _plain_dict(*_: Any) -> dict[Any, Any]:
    """Stand in for a defaultdict: ignore its factory; pickle adds the items afterwards."""
    return {}


def _stand_ins(classes: list[str]) -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    """Return the stand-in for each class that a pickle may contain besides tensors."""
    known: list[Any] = [(_plain_dict, "collections.defaultdict")]
    for module in ("pathlib", "pathlib._local"):
        for name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"):
            known.append((_Text, f"{module}.{name}"))
    for module in ("numpy.core.multiarray", "numpy._core.multiarray"):
        known += [(_scalar, f"{module}.scalar"), (_Array, f"{module}._reconstruct")]
    known += [(_Dtype, "numpy.dtype"), (_Array, "numpy.ndarray")]
    # Factories of a defaultdict: a genuine pickle names them but never calls them.
    for name in ("dict", "list", "int", "float", "str", "bool"):
        known.append((_inert(f"builtins.{name}"), f"builtins.{name}"))
    return known + [(_inert(path), path) for path in classes]


def _inert(path: str) -> type[Inert]:
    return type(path.rpartition(".")[2], (Inert,), {"path": path})


# Reading


def read_pickle(source: Path, classes: list[str]) -> Any:
    """Read a file of torch.save or pickle as tensors, plain values and stand-ins.

    Raises:
        Refused: it holds other classes, is compressed or is not what it claims to be.
    """
    # torch.save writes a ZIP archive since version 1.6; only that can be memory-mapped.
    with open(source, "rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if is_zip:
        _check_archive(source)
    try:
        with torch.serialization.safe_globals(_stand_ins(classes)):
            return torch.load(source, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL ([\w.<>]+)", str(error))
        if found is None:
            raise Refused("it is truncated, damaged or not a file of weights") from None
        raise Refused(
            f"it holds an object of the class {found.group(1)}, and loading that could run code"
        ) from None
    except (RuntimeError, EOFError, ValueError, LookupError, TypeError) as error:
        line = (str(error).splitlines() or [""])[0][:200]
        raise Refused(f"it is truncated, damaged or not a file of weights ({line})") from None


def _check_archive(source: Path) -> None:
    """Refuse archives whose parts are compressed, overlap or claim to exceed the file."""
    try:
        with zipfile.ZipFile(source) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError) as error:
        raise Refused(f"it is truncated or damaged ({error})") from None
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
        raise Refused("its contents are compressed, which torch.save never does")
    if sum(entry.file_size for entry in entries) > source.stat().st_size:
        raise Refused("its parts claim to be longer than the file")
    pickles = [entry for entry in entries if entry.filename.endswith(".pkl")]
    if any(entry.file_size > _MAX_PICKLE_BYTES for entry in pickles):
        raise Refused("its index is far larger than that of any real model")


class Flattener:
    """Splits nested containers into named tensors and JSON values."""

    def __init__(self, routes: Routes, max_bytes: int) -> None:
        # The longest prefix that matches wins.
        self.routes = sorted(routes.items(), key=lambda item: -len(item[0]))
        self.files: dict[str, dict[str, torch.Tensor]] = {}
        self.bytes_left = max_bytes
        self.nodes_left = _MAX_NODES

    def flatten(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """Move the tensors of `value` to `files` and return it with their names in their place."""
        self.nodes_left -= 1
        if depth > _MAX_DEPTH or self.nodes_left < 0:
            raise Refused("it has too many containers, or they are nested too deeply")
        if isinstance(value, _Array):
            value = value.tensor
        if isinstance(value, torch.Tensor):
            return self._place(value, name)
        if isinstance(value, Inert):
            fields = self._items(vars(value), name, depth)
            return {CLASS: value.path} | fields
        if isinstance(value, dict):
            return self._items(value, name, depth)
        if isinstance(value, list | tuple | set | torch.Size):
            return [
                self.flatten(item, f"{name}.{index}", depth + 1) for index, item in enumerate(value)
            ]
        if value is None or isinstance(value, str | bool | int | float):
            return str(value) if isinstance(value, _Text) else value
        return {DROPPED: str(getattr(value, "path", type(value).__name__))[:200]}

    def _items(self, items: dict[Any, Any], name: str, depth: int) -> dict[str, Any]:
        start = f"{name}." if name else ""
        return {
            str(key): self.flatten(value, f"{start}{key}", depth + 1)
            for key, value in items.items()
        }

    def _place(self, tensor: torch.Tensor, name: str) -> dict[str, str]:
        route = next((target for start, target in self.routes if name.startswith(start)), None)
        if route is None:
            return {DROPPED: name}
        file, start = route
        match = next(start for start, _ in self.routes if name.startswith(start))
        renamed = start + name[len(match) :]
        tensors = self.files.setdefault(file, {})
        if renamed in tensors:
            raise Refused(f"two of its tensors have the name {renamed}")
        self._check(tensor, name)
        tensors[renamed] = tensor.detach()
        return {TENSOR: renamed}

    def _check(self, tensor: torch.Tensor, name: str) -> None:
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise Refused(f"{name} is not a dense tensor")
        if tensor.dtype not in _DTYPES:
            raise Refused(f"{name} has the unknown type {tensor.dtype}")
        size = math.prod(tensor.shape) * tensor.element_size()
        # Strides of 0 let a tiny storage claim any size. Expanded tensors below 1 MiB are harmless.
        if size > tensor.untyped_storage().nbytes() + _MIB or size > self.bytes_left:
            raise Refused(f"{name} claims {size} bytes, far more than the file holds")
        self.bytes_left -= size


# Writing


def write_tensors(
    path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors of any shape as safetensors, one by one, so that only one is in memory.

    Raises:
        OSError: the disk is full or not writable.
    """
    # Wide types first, as safetensors does: every tensor then starts at a multiple of its item
    # size.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name in names:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        about = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape)}
        header[name] = about | {"data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            for part in _parts(tensors[name]):
                file.write(part)
        file.flush()
        os.fsync(file.fileno())


def _parts(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a tensor of any shape."""
    if tensor.numel():
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data


def convert(source: Path, folder: Path, routes: Routes, classes: list[str]) -> None:
    """Write the tensors of a pickle as safetensors and its other values as values.json.

    Raises:
        Refused: the file holds something that must not be read.
    """
    content = read_pickle(source, classes)
    values = split(content, folder, routes, max_bytes=4 * source.stat().st_size + 16 * _MIB)
    (folder / "values.json").write_text(json.dumps(values), encoding="utf-8")


def split(content: Any, folder: Path, routes: Routes, *, max_bytes: int) -> Any:
    """Write the tensors in nested containers as routed; return the rest as JSON values.

    Raises:
        Refused: a tensor has an unsupported kind, or all together claim more than `max_bytes`.
    """
    flattener = Flattener(routes, max_bytes)
    values = flattener.flatten(content)
    for name, tensors in flattener.files.items():
        write_tensors(folder / f"{name}.safetensors", tensors)
    return values


def limit_resources(file_bytes: int, cpu_s: int) -> None:
    """Limit this process to the memory, disk space and CPU time that a genuine file can need."""
    try:
        import resource
    except ImportError:  # Windows has no such limits; the parent still enforces a timeout
        return
    limits = {
        # On top of what is mapped already: the file, one copy and 1 GiB for torch.
        resource.RLIMIT_AS: _mapped_bytes() + 2 * file_bytes + 1024 * _MIB,
        resource.RLIMIT_FSIZE: 4 * file_bytes + 32 * _MIB,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_CORE: 0,
    }
    for kind, limit in limits.items():
        with suppress(ValueError, OSError):  # a lower limit may be in force already
            resource.setrlimit(kind, (limit, limit))


def _mapped_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return 64 * 1024 * _MIB  # unknown outside Linux; 64 GiB of address space hinders nobody
    return pages * os.sysconf("SC_PAGE_SIZE")


def main(task_file: Path) -> None:
    """Convert the files of a task and leave the outcome for the parent in outcome.json."""
    task = json.loads(task_file.read_text(encoding="utf-8"))
    sources = [Path(job["source"]) for job in task["jobs"]]
    limit_resources(max(path.stat().st_size for path in sources), task["cpu_s"])
    outcome: dict[str, Any] = {"done": len(sources)}
    for index, (source, job) in enumerate(zip(sources, task["jobs"], strict=True)):
        outcome["at"] = index
        _report(task_file, outcome)
        try:
            convert(source, Path(job["folder"]), job["routes"], task["classes"])
        except Refused as error:
            _report(task_file, {"at": index, "refused": str(error)})
            return
        except OSError as error:
            _report(task_file, {"at": index, "disk": error.strerror or str(error)})
            return
    _report(task_file, {"at": len(sources)})


def _report(task_file: Path, outcome: dict[str, Any]) -> None:
    text = json.dumps(outcome)
    (task_file.parent / "outcome.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

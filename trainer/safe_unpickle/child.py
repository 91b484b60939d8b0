"""The child process that reads pickles with allow-listed classes and limited memory and time.

It runs as a separate script that imports torch but nothing of this project, so any damage a file
does ends with the process. torch reads with `weights_only=True`. Classes that genuine checkpoints
contain besides tensors are replaced by a stand-in that ignores whatever it is given.
"""

import json
import math
import os
import pickle
import re
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

TENSOR = "$tensor"
"""The key that marks a tensor's name among the values of a file."""

Routes = dict[str, tuple[str, str] | None]
"""Where tensors go: prefix of a name -> (file, new prefix), or None to drop the tensor."""

ALL: Routes = {"": ("tensors", "")}
"""Routes that write every tensor to tensors.safetensors under its own name."""

_IGNORED = (
    "TTS.tts.configs.xtts_config.XttsConfig",
    "TTS.tts.configs.xtts_config.XttsArgs",
    "TTS.tts.configs.xtts_config.XttsAudioConfig",
    # Their older paths, used when the published weights were saved.
    "TTS.tts.models.xtts.XttsArgs",
    "TTS.tts.models.xtts.XttsAudioConfig",
    "TTS.tts.layers.xtts.trainer.gpt_trainer.GPTTrainerConfig",
    "TTS.tts.layers.xtts.trainer.gpt_trainer.GPTArgs",
    "TTS.config.shared_configs.BaseDatasetConfig",
    "TTS.config.shared_configs.BaseAudioConfig",
    "TTS.config.shared_configs.BaseTrainingConfig",
    "TTS.tts.configs.shared_configs.BaseTTSConfig",
    "TTS.tts.configs.shared_configs.CharactersConfig",
    "coqpit.coqpit.Coqpit",
    "coqpit.Coqpit",
    "argparse.Namespace",
    *(
        f"{module}.{name}"
        for module in ("pathlib", "pathlib._local")
        for name in ("Path", "PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
    ),
    *(
        f"numpy.{module}.multiarray.{name}"
        for module in ("core", "_core")
        for name in ("scalar", "_reconstruct")
    ),
    "numpy.dtype",
    "numpy.ndarray",
    # Factories of a defaultdict: a genuine pickle names them but never calls them.
    *(f"builtins.{name}" for name in ("dict", "list", "int", "float", "str", "bool")),
)
"""Classes that genuine checkpoints contain besides tensors: settings, paths, losses of numpy.

The classes themselves are never imported, and no model needs what their objects hold."""

_MIB = 2**20
# Limits chosen by hand, well above what genuine checkpoints need: a few levels, some thousand
# entries and an index of a few MiB.
_MAX_DEPTH, _MAX_NODES = 32, 1_000_000
_MAX_PICKLE_BYTES = 64 * _MIB


class Refused(Exception):
    """The file must not be converted; the message says why."""


class Ignored:
    """Stands in for an object of a known class; it keeps nothing."""

    def __new__(cls, *arguments: object) -> "Ignored":
        """Accept the arguments of the original's constructor and ignore them."""
        return super().__new__(cls)

    def __setstate__(self, state: object) -> None:
        """Ignore the fields."""


def _plain_dict(*_: object) -> dict[object, object]:
    """Stand in for a defaultdict: ignore its factory; pickle adds the items afterwards."""
    return {}


def read_pickle(source: Path) -> object:
    """Read a file of torch.save or pickle as tensors, plain values and stand-ins.

    Raises:
        Refused: it holds other classes, is compressed or is not what it claims to be.
    """
    # torch.save writes a ZIP archive since version 1.6; only that can be memory-mapped.
    with open(source, "rb") as file:
        is_zip = file.read(4) == b"PK\x03\x04"
    if is_zip:
        _check_archive(source)
    stand_ins = [(_plain_dict, "collections.defaultdict"), *((Ignored, path) for path in _IGNORED)]
    try:
        with torch.serialization.safe_globals(stand_ins):
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
        self.routes = routes
        self.files: dict[str, dict[str, torch.Tensor]] = {}
        self.dropped: list[str] = []
        self.bytes_left = max_bytes
        self.nodes_left = _MAX_NODES
        self._storages: set[int] = set()

    def flatten(self, value: object, name: str = "", depth: int = 0) -> object:
        """Move the tensors of `value` to `files` and return it with their names in their place."""
        self.nodes_left -= 1
        if depth > _MAX_DEPTH or self.nodes_left < 0:
            raise Refused("it has too many containers, or they are nested too deeply")
        if isinstance(value, torch.Tensor):
            return self._place(value, name)
        if isinstance(value, dict):
            start = f"{name}." if name else ""
            return {
                str(key): self.flatten(item, f"{start}{key}", depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple | set | torch.Size):
            return [
                self.flatten(item, f"{name}.{index}", depth + 1) for index, item in enumerate(value)
            ]
        if value is None or isinstance(value, str | bool | int | float):
            return value
        if not isinstance(value, Ignored):
            self.dropped.append(f"{name or 'the whole'}: {type(value).__name__}")
        return None

    def _place(self, tensor: torch.Tensor, name: str) -> dict[str, str] | None:
        target = find_route(name, self.routes)
        if target is None:
            self.dropped.append(f"{name}: tensor")
            return None
        self._check(tensor, name)
        file, renamed = target
        tensors = self.files.setdefault(file, {})
        if renamed in tensors:
            raise Refused(f"two of its tensors have the name {renamed}")
        # safetensors refuses tensors that share memory.
        memory = tensor.untyped_storage().data_ptr()
        tensors[renamed] = tensor.clone() if memory in self._storages else tensor.contiguous()
        self._storages.add(memory)
        return {TENSOR: renamed}

    def _check(self, tensor: torch.Tensor, name: str) -> None:
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise Refused(f"{name} is not a dense tensor")
        size = math.prod(tensor.shape) * tensor.element_size()
        # Strides of 0 let a tiny storage claim any size. Expanded tensors below 1 MiB are harmless.
        if size > tensor.untyped_storage().nbytes() + _MIB or size > self.bytes_left:
            raise Refused(f"{name} claims {size} bytes, far more than the file holds")
        self.bytes_left -= size


def find_route(name: str, routes: Mapping[str, tuple[str, str] | None]) -> tuple[str, str] | None:
    """Return the file and the new name of a tensor, or None; the longest matching prefix wins."""
    start = max((start for start in routes if name.startswith(start)), key=len, default="")
    target = routes.get(start)
    return None if target is None else (target[0], target[1] + name.removeprefix(start))


def convert(source: Path, folder: Path, routes: Routes) -> dict[str, object]:
    """Write the tensors of a pickle as safetensors; return its other values and what was dropped.

    Raises:
        Refused: the file holds something that must not be read.
        OSError, SafetensorError: the disk is full or not writable.
    """
    flattener = Flattener(routes, 4 * source.stat().st_size + 16 * _MIB)
    values = flattener.flatten(read_pickle(source))
    for name, tensors in flattener.files.items():
        try:
            save_file(tensors, folder / f"{name}.safetensors")
        except KeyError as error:
            raise Refused(f"it has a tensor of the unknown type {error}") from None
    return {"values": values, "dropped": flattener.dropped}


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


def main(task: str) -> None:
    """Convert the files of a task (JSON); write the outcome of each as a line of JSON."""
    cpu_s, jobs = json.loads(task)
    sources = [Path(source) for source, _, _ in jobs]
    limit_resources(max(path.stat().st_size for path in sources), cpu_s)
    for source, folder, routes in jobs:
        try:
            outcome = convert(Path(source), Path(folder), routes)
        except Refused as error:
            outcome = {"refused": str(error)}
        except (OSError, SafetensorError) as error:
            outcome = {"disk": getattr(error, "strerror", None) or str(error)}
        sys.stdout.write(json.dumps(outcome) + "\n")
        sys.stdout.flush()  # the next file may end this process
        if "values" not in outcome:
            return


if __name__ == "__main__":
    main(sys.argv[1])

"""Find the entries of a registry: every module of a package holds exactly one.

Modules whose name starts with `_` hold shared code and are skipped, and so is `main`, which lists
the entries. So adding a model family, an
optimizer, an optimization or a command means adding one file.
"""

import importlib
import pkgutil
from functools import cache
from typing import Any, TypeVar

from trainer.core.errors import UnknownEntry
from trainer.core.options import unknown_name

Entry = TypeVar("Entry")


def discover(package_name: str, kind: type[Entry]) -> dict[str, Entry]:
    """Import every entry module of a package and return its entries by name, sorted.

    Raises:
        TypeError: a module holds no entry of that kind or several, or two share one name.
    """
    return dict(_discover(package_name, kind))


def find(package_name: str, kind: type[Entry], name: str) -> Entry:
    """Return one entry.

    Raises:
        UnknownEntry: no entry has that name; the message lists those that exist.
    """
    entries = discover(package_name, kind)
    if name not in entries:
        # trainer.optimizers -> "optimizer", trainer.models -> "model family", for the message.
        noun = package_name.rsplit(".", 1)[-1].rstrip("s").replace("model", "model family")
        raise UnknownEntry(unknown_name(name, list(entries), noun))
    return entries[name]


@cache  # a registry does not change while the process runs
def _discover(package_name: str, kind: Any) -> dict[str, Any]:
    package = importlib.import_module(package_name)
    entries: dict[str, Any] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        if module_info.name.startswith("_") or module_info.name == "main":
            continue
        module = importlib.import_module(f"{package_name}.{module_info.name}")
        # By type, not by name: a spec may be called anything in its module.
        found = [value for value in vars(module).values() if isinstance(value, kind)]
        if len(found) != 1:
            raise TypeError(
                f"{module.__name__} holds {len(found)} entries of type {kind.__name__}; "
                "expected exactly 1"
            )
        entry = found[0]
        if entry.name in entries:
            raise TypeError(f"{module.__name__}: the name '{entry.name}' is already in use")
        entries[entry.name] = entry
    return dict(sorted(entries.items()))

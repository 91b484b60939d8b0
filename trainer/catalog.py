"""Catalogs: every module of a package that does not start with `_` holds exactly one entry."""

import importlib
import pkgutil
from functools import cache
from typing import Any, TypeVar

from trainer.errors import UnknownEntry
from trainer.options import unknown_name

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
        UnknownEntry: no entry has that name; the message lists what there is.
    """
    entries = discover(package_name, kind)
    if name not in entries:
        noun = package_name.rsplit(".", 1)[-1].rstrip("s").replace("model", "model family")
        raise UnknownEntry(unknown_name(name, list(entries), noun))
    return entries[name]


@cache
def _discover(package_name: str, kind: Any) -> dict[str, Any]:
    package = importlib.import_module(package_name)
    entries: dict[str, Any] = {}
    for module_info in pkgutil.iter_modules(package.__path__):
        if module_info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package_name}.{module_info.name}")
        found = [value for value in vars(module).values() if isinstance(value, kind)]
        if len(found) != 1:
            raise TypeError(
                f"{module.__name__} holds {len(found)} entries of {kind.__name__}, not 1"
            )
        entry = found[0]
        if entry.name in entries:
            raise TypeError(f"{module.__name__}: the name '{entry.name}' is taken already")
        entries[entry.name] = entry
    return dict(sorted(entries.items()))

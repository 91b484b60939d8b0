"""Paths: where this Timbre lies, and how a child process is started that uses this one.

Timbre runs from its source tree or from an installed wheel. The wheel holds the same files, but
names the folder of assets `timbre_assets`, as `assets` would be anybody's.
"""

import os
import site
import sys
from pathlib import Path

PACKAGE = next(folder for folder in Path(__file__).resolve().parents if folder.name == "trainer")
PROJECT = PACKAGE.parent
"""The folder that holds the packages: the source tree, or site-packages."""
_IN_SOURCE, _INSTALLED = PROJECT / "assets", PROJECT / "timbre_assets"
# The demo's list is in every copy of the assets and in no other project's folder of that name.
ASSETS = _IN_SOURCE if (_IN_SOURCE / "demo" / "train.csv").is_file() else _INSTALLED
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
"""The variable that does what -P does, for programs that start Python themselves, as torchrun."""


def trainer_command(*words: str) -> list[str]:
    """Return the command line that runs a command of the trainer in a process of its own."""
    # -P keeps Python from searching the working folder, where another project may have a folder
    # named trainer. The environment below tells it where to search instead.
    return [sys.executable, "-P", "-m", "trainer", *words]


def child_environment() -> dict[str, str]:
    """Return this environment, changed so that a child process finds the same packages."""
    environment = dict(os.environ)
    search = environment.get("PYTHONPATH", "").split(os.pathsep)
    if not is_on_default_path() and str(PROJECT) not in search:
        environment["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *filter(None, search)])
    return environment


def is_on_default_path() -> bool:
    """Whether every Python process of this environment finds the packages by itself.

    site-packages must not stand in PYTHONPATH: it would come before the standard library there.
    """
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    return PROJECT in [Path(folder).resolve() for folder in folders]

"""Detects another package named `trainer` in the same environment, such as coqui-tts's companion.

The PyPI packages `coqui-tts-trainer` and `trainer` install a folder `trainer/`, as Timbre does, and
pip overwrites files of the same name without a word. This module imports nothing of Timbre, so that
it also works when trainer/__init__.py belongs to another package.
"""

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

COMPANIONS = ("coqui-tts-trainer", "trainer")
_EXIT_CODE = 2  # that of ConfigError, which cannot be imported here
# From this file's path: the name `trainer` may lead to the other package.
_PACKAGE = next(folder for folder in Path(__file__).resolve().parents if folder.name == "trainer")
_OURS = _PACKAGE / "__init__.py"
_REMEDY = (
    "Keep Timbre and coqui-tts in separate virtual environments. To repair this one: "
    "pip uninstall {names}, then install Timbre again from its source folder with "
    "pip install --force-reinstall --no-deps FOLDER."
)


def refuse_foreign_trainer() -> None:
    """Exit with an explanation if Python's `trainer` isn't Timbre's; warn if both are mixed."""
    names = [name for name in COMPANIONS if _shares_our_folder(name)]
    remedy = _REMEDY.format(names=" ".join(names) or COMPANIONS[0])
    # Nothing of Timbre can be imported now, so going on would end in an ImportError that explains
    # nothing.
    if not is_ours():
        owner = " and ".join(names) or "another package"
        sys.stderr.write(
            f"Error: The Python package 'trainer' in this environment belongs to {owner}, not to "
            f"Timbre. Both install a folder named trainer/, and the last one installed replaced "
            f"files of the other. {remedy}\n"
        )
        raise SystemExit(_EXIT_CODE)
    if names:
        sys.stderr.write(
            f"Warning: {' and '.join(names)} is installed in the same folder trainer/ as Timbre "
            f"({_OURS.parent}). Timbre works, but coqui-tts doesn't here, and uninstalling either "
            f"package removes files of the other. {remedy}\n"
        )


def is_ours() -> bool:
    """Whether Python finds our package under the name `trainer`, and its first file is ours."""
    # The module that is loaded already decides; the search path may have changed since then.
    found = sys.modules.get("trainer")
    spec = found.__spec__ if found is not None else importlib.util.find_spec("trainer")
    if spec is None or spec.origin is None or Path(spec.origin).resolve() != _OURS:
        return False
    # The path alone proves nothing: both packages install this very file, and pip keeps the later
    # one.
    return "from trainer.core.run_config import RunConfig" in _OURS.read_text(encoding="utf-8")


def _shares_our_folder(name: str) -> bool:
    """Whether a distribution is installed, and its files lie among ours."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return False
    return any(
        Path(str(found.locate_file(file))).resolve().parent == _OURS.parent
        for file in found.files or ()  # None if the package has no list of its files
        if file.parts[0] == "trainer"
    )

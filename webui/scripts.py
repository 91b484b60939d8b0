"""Serve our JavaScript modules and connect their functions to elements of the page.

Gradio inserts the HTML head while it renders, so the script may load before or after an element.
Calls are therefore put in a list that the script works off when it has loaded.
"""

import functools
import hashlib
import json
import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response

from trainer.core.metrics import describe_metrics

STATIC = Path(__file__).resolve().parent / "static"
"""Scripts, styles and translations that the page loads."""
SCRIPTS_PATH = "/studio/page/js/{version}/{path:path}"
"""The route of the modules. They import each other by relative addresses, so that the version in
the address of the first is in the addresses of all."""
_IMPORT = re.compile(r'\bfrom "(\.[^"]+)"')
_FOREVER, _CHECKED = "public, max-age=31536000, immutable", "no-cache"


@dataclass(frozen=True)
class Scripts:
    """What the HTML head needs to start the scripts: `templates/scripts.html`."""

    folder: str
    """The address of the modules, relative to the page."""
    settings: str
    now: list[str]
    """The modules that run at once."""
    later: list[str]
    """Those that a tab loads when it is first opened."""


def describe_scripts() -> Scripts:
    """Return the modules and the settings of the page.

    Modules are preloaded because a browser finds them otherwise import by import, one round trip
    after the other: `docs/decisions/0103-scripts-are-modules.md`.
    """
    settings = {
        "pollMs": int(os.environ.get("TIMBRE_POLL_MS", "1000")),
        "metrics": describe_metrics(),
    }
    now = _imported("main.js")
    return Scripts(
        folder=f"studio/page/js/{_version()}",
        settings=json.dumps(settings),
        now=sorted(now),
        later=[name for name in _modules() if name not in now],
    )


def script_file(request: Request) -> Response:
    """Serve one module; public, as the login page needs them.

    An open page may ask for an earlier version after an update: it gets the present one, which must
    not be stored under that address.
    """
    path = _modules().get(request.path_params["path"])
    if path is None:
        return PlainTextResponse("File not found.", status_code=404)
    is_current = request.path_params["version"] == _version()
    headers = {"Cache-Control": _FOREVER if is_current else _CHECKED}
    return FileResponse(path, media_type="text/javascript", headers=headers)


def mount(function: str, *further: str) -> str:
    """Return a `js_on_load` that lets a function of our script fill the element.

    `further` are the names of what Gradio offers beside the element and its trigger, as `props`.
    """
    return queued(function, "element", "trigger", *further)


def queued(function: str, *given: str) -> str:
    """Return a line of JavaScript that calls a function of our script once it has loaded."""
    call = ", ".join([f'"{function}"', *given])
    return f"(window.timbre = window.timbre || []).push([{call}]);"


def _modules() -> dict[str, Path]:
    """Return the modules by their path in an address."""
    folder = STATIC / "js"
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*.js"))}


def _imported(name: str) -> set[str]:
    """Return a module and all that it imports before it runs."""
    waiting, found = [name], set()
    while waiting:
        name = waiting.pop()
        found.add(name)
        folder = PurePosixPath(name).parent
        text = (STATIC / "js" / name).read_text(encoding="utf-8")
        targets = {posixpath.normpath(folder / path) for path in _IMPORT.findall(text)}
        waiting += targets - found
    return found


def _version() -> str:
    """Return a short hash of all modules; it changes with any of them."""
    return _hash(tuple((name, path.stat().st_mtime_ns) for name, path in _modules().items()))


@functools.lru_cache(maxsize=1)  # every module that is served asks for it
def _hash(stamps: tuple[tuple[str, int], ...]) -> str:
    digest = hashlib.sha256()
    for name, _ in stamps:
        digest.update(name.encode() + b"\0" + (STATIC / "js" / name).read_bytes() + b"\0")
    return digest.hexdigest()[:12]

"""Prepare the environment, the working folder and the port, then serve the page."""

import argparse
import ipaddress
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil

from trainer.core.version import __version__

_STALE_S = 86400  # A day: chosen by hand; longer than anyone waits for a download.
_INTERRUPTED = 130
"""Exit code of a program that Ctrl+C ended before it was ready: 128 + SIGINT, as in shells."""


def main(argv: list[str] | None = None) -> None:
    """Build the page and serve it until SIGINT (Ctrl+C) or SIGTERM; both end it with code 0."""
    args = _parse(argv)
    _stop_at_signals()
    try:
        _serve(args)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _serve(args: argparse.Namespace) -> None:
    home = Path.cwd()
    page_folder = home / args.runs / ".page"
    page_folder.mkdir(parents=True, exist_ok=True)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    cache = _clean_cache(page_folder / "cache")
    os.environ["GRADIO_TEMP_DIR"] = str(cache)
    # Gradio may serve any file in the temporary folder, so it must not be the shared /tmp.
    tempfile.tempdir = str(cache)
    work = _working_folder(page_folder)
    os.chdir(work)
    from webui.server import serve  # imported late: Gradio reads the environment at import

    try:
        serve(args, work, home, _free_port(args.host, args.port))
    finally:
        os.chdir(home)
        shutil.rmtree(work, ignore_errors=True)


def _stop_at_signals() -> None:
    """Stop the page cleanly at SIGINT and SIGTERM.

    A shell starts background jobs of a script with SIGINT ignored, and Python then installs no
    handler of its own. SIGTERM, which service managers and containers send, would end the process
    without cleaning up.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _clean_cache(cache: Path) -> Path:
    """Create the folder for uploads and downloads, and delete files older than a day."""
    cache.mkdir(mode=0o700, exist_ok=True)
    for path in cache.rglob("*"):
        with suppress(OSError):
            if path.is_file() and path.stat().st_mtime < time.time() - _STALE_S:
                path.unlink()
    return cache


def _working_folder(page_folder: Path) -> Path:
    """Create an empty working folder, because Gradio may serve files from the working folder."""
    for left in page_folder.glob("work-*"):
        pid = left.name.removeprefix("work-")
        if pid.isdigit() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid))):
            shutil.rmtree(left, ignore_errors=True)
    work = page_folder / f"work-{os.getpid()}"
    work.mkdir()
    return work


def build_parser(epilog: str = "") -> argparse.ArgumentParser:
    """Return the parser of the page's options; `epilog` follows them in the help."""
    parser = argparse.ArgumentParser(
        description="Start Timbre and open it in the browser.",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"Timbre {__version__}")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
    parser.add_argument("--port", type=int, default=7860, help="port, or the next free port [7860]")
    parser.add_argument(
        "--auth",
        metavar="USER:PASSWORD",
        help="login; also read from $TIMBRE_AUTH; required to serve other machines",
    )
    parser.add_argument("--runs", default="runs", help="folder for the runs [runs]")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                        help="extra host name to accept, e.g. behind a proxy")  # fmt: skip
    parser.add_argument("--no-token", dest="token", action="store_false",
                        help="let any user of this machine in without a token")  # fmt: skip
    parser.add_argument("--max-upload", type=float, default=4.0, metavar="GB",
                        help="largest browser upload [4]")  # fmt: skip
    parser.add_argument(
        "--no-browser", dest="open", action="store_false", help="do not open a browser"
    )
    return parser


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = build_parser()
    args = parser.parse_args(argv)
    args.auth = args.auth or os.environ.pop("TIMBRE_AUTH", "")
    if not _is_loopback(args.host) and not args.auth:
        parser.error(
            f"--host {args.host} is reachable from other machines; add --auth USER:PASSWORD"
        )
    if args.max_upload <= 0:
        parser.error("--max-upload must be a number of gigabytes above 0")
    if args.auth and not all(args.auth.partition(":")):
        parser.error("--auth must have the form USER:PASSWORD")
    return args


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _free_port(host: str, first: int) -> int:
    for port in range(first, first + 100):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind((host, port))
            except OSError:
                continue
            return port
    raise SystemExit(f"No free port between {first} and {first + 99}. Choose another with --port.")


if __name__ == "__main__":
    main()

"""Timbre's page: python app.py starts it and opens the browser."""

import argparse
import ipaddress
import os
import shutil
import socket
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

_STALE_S = 86400


def main(argv: list[str] | None = None) -> None:
    """Build the page and serve it until Ctrl+C."""
    args = _parse(argv)
    home = Path.cwd()
    page_folder = home / args.runs / ".page"
    page_folder.mkdir(parents=True, exist_ok=True)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    cache = _clean_cache(page_folder / "cache")
    os.environ["GRADIO_TEMP_DIR"] = str(cache)
    # Gradio may serve what lies in the temporary folder: not what other programs keep there.
    tempfile.tempdir = str(cache)
    work = _working_folder(page_folder)
    os.chdir(work)
    from webui.server import serve  # only now: Gradio reads the environment when imported

    try:
        serve(args, work, home, _free_port(args.host, args.port))
    finally:
        os.chdir(home)
        shutil.rmtree(work, ignore_errors=True)


def _clean_cache(cache: Path) -> Path:
    """Make the folder of files on their way to and from browsers, without what is a day old."""
    cache.mkdir(mode=0o700, exist_ok=True)
    for path in cache.rglob("*"):
        with suppress(OSError):
            if path.is_file() and path.stat().st_mtime < time.time() - _STALE_S:
                path.unlink()
    return cache


def _working_folder(page_folder: Path) -> Path:
    """Make an empty folder to stand in, as Gradio may serve what lies in the working folder."""
    for left in page_folder.glob("work-*"):
        pid = left.name.removeprefix("work-")
        if pid.isdigit() and (int(pid) == os.getpid() or not psutil.pid_exists(int(pid))):
            shutil.rmtree(left, ignore_errors=True)
    work = page_folder / f"work-{os.getpid()}"
    work.mkdir()
    return work


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Start Timbre's page in the browser.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
    parser.add_argument("--port", type=int, default=7860, help="port, or the next free one [7860]")
    parser.add_argument(
        "--auth",
        metavar="USER:PASSWORD",
        help="login, also as $TIMBRE_AUTH; needed beyond this machine",
    )
    parser.add_argument("--runs", default="runs", help="folder that holds the runs [runs]")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                        help="further name it answers to, as behind a proxy")  # fmt: skip
    parser.add_argument("--no-token", dest="token", action="store_false",
                        help="do not ask this machine's users for the printed token")  # fmt: skip
    parser.add_argument("--max-upload", type=float, default=4.0, metavar="GB",
                        help="largest upload from a browser [4]")  # fmt: skip
    parser.add_argument("--no-browser", dest="open", action="store_false", help="open no browser")
    args = parser.parse_args(argv)
    args.auth = args.auth or os.environ.pop("TIMBRE_AUTH", "")
    if not _is_loopback(args.host) and not args.auth:
        parser.error(f"--host {args.host} is reachable from other machines: give --auth as well")
    if args.max_upload <= 0:
        parser.error("--max-upload is not a number of gigabytes above 0")
    if args.auth and not all(args.auth.partition(":")):
        parser.error("--auth is not of the form USER:PASSWORD")
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
    raise SystemExit(f"No free port between {first} and {first + 99}. Give another --port.")


if __name__ == "__main__":
    main()

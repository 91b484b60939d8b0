"""Timbre's page: python app.py starts it and opens the browser."""

import argparse
import ipaddress
import os
import shutil
import socket
from pathlib import Path

import psutil


def main(argv: list[str] | None = None) -> None:
    """Build the page and serve it until Ctrl+C."""
    args = _parse(argv)
    home = Path.cwd()
    page_folder = home / args.runs / ".page"
    page_folder.mkdir(parents=True, exist_ok=True)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_TEMP_DIR"] = str(page_folder / "cache")
    work = _working_folder(page_folder)
    os.chdir(work)
    from webui.server import serve  # only now: Gradio reads the environment when imported

    try:
        serve(args, work, home, _free_port(args.host, args.port))
    finally:
        os.chdir(home)
        shutil.rmtree(work, ignore_errors=True)


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
    parser.add_argument("--auth", metavar="USER:PASSWORD", help="login; needed beyond this machine")
    parser.add_argument("--runs", default="runs", help="folder that holds the runs [runs]")
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME",
                        help="further name it answers to, as behind a proxy")  # fmt: skip
    parser.add_argument("--no-browser", dest="open", action="store_false", help="open no browser")
    args = parser.parse_args(argv)
    if not _is_loopback(args.host) and not args.auth:
        parser.error(f"--host {args.host} is reachable from other machines: give --auth as well")
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
